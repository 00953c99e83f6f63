#!/usr/bin/python3
"""A private Slurm: cluster.py [--nodes NAME,NAME] COMMAND... runs COMMAND in it and ends with its code; 77 where it cannot be.

Its node is this machine, or its nodes are hosts that tests/support/nodes.sh makes; COMMAND then runs on the first. Key, sockets,
ports, state and logs are in a temporary folder, so that it does not disturb another Slurm of the machine.
"""

import contextlib
import ctypes
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

SKIPPED = 77
DAEMONS = ["munged", "slurmctld", "slurmd"]
NODES = pathlib.Path(__file__).resolve().parents[1] / "support/nodes.sh"
CLIENTS = ["sbatch", "srun", "scontrol", "scancel", "squeue", "sinfo"]
PR_SET_CHILD_SUBREAPER = 36

# More CPUs than there are: four ranks should start on a small machine. cred_expire is what a requeued job waits before it
# starts again, 120 s by default. linuxproc and task/none do without cgroups, which containers seldom lend. TmpFS keeps
# PMIx's folders apart: they are named after jobs, whose numbers begin at 1 each time, and one left behind stops a start.
CONFIGURATION = """
ClusterName=maestro-test
SlurmctldHost={host}
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
TmpFS={folder}/tmp.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
ReturnToService=2
NodeName={nodes} CPUs=8
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Obstacle(Exception):
    """Why no Slurm can be started here."""


def find(program):
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def check_machine(hosts):
    if os.geteuid() != 0:
        raise Obstacle("slurmd has to be root")
    if not os.path.ismount("/sys/fs/cgroup"):
        raise Obstacle("no control groups are mounted on /sys/fs/cgroup, without which slurmd does not start")
    if missing := [program for program in [*DAEMONS, *CLIENTS, "setpriv", "taskset"] if not find(program)]:
        raise Obstacle(f"not installed: {', '.join(missing)}")
    if hosts and not find("ip"):
        raise Obstacle("not installed: ip (iproute2)")
    if hosts and (probe := subprocess.run(["unshare", "--net", "--uts", "--mount", "--ipc", "true"], capture_output=True, text=True)).returncode:
        raise Obstacle(f"no hosts can be made here: {probe.stderr.strip()}")


def free_ports():
    with socket.socket() as first, socket.socket() as second:
        for probe in (first, second):
            probe.bind(("", 0))
        return first.getsockname()[1], second.getsockname()[1]


class Cluster:
    """As a context: the nodes are idle at the start; at the end no job, no daemon and no host is left."""

    def __init__(self, nodes=()):
        self.hosts = list(nodes)
        self.nodes = self.hosts or ["localhost"]
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="maestro-slurm-"))
        self.folder.chmod(0o711)  # munged wants its socket to be within everyone's reach
        foreign = ("SLURM", "SBATCH_", "SRUN_")  # we may be in a job ourselves
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
        self.environment["SLURM_CONF"] = str(self.folder / "slurm.conf")
        self.environment["NODES_STATE"] = str(self.folder / "nodes")
        self.daemons = []

    def __enter__(self):
        # Slurm's step daemons detach themselves: as their reaper we can find them and end them.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            self.start()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(self, *error):
        with contextlib.suppress(subprocess.TimeoutExpired):
            if len(self.daemons) == 2 + len(self.nodes):
                self.client("scancel", "--user=root", "--signal=KILL", "--full")
                self.client("scancel", "--user=root")
                self.wait_for("jobs to end", lambda: not self.client("squeue", "--noheader"), 15, fatal=False)
        for _, daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(5)
            except subprocess.TimeoutExpired:
                daemon.kill()
        if self.hosts:
            subprocess.run([NODES, "down"], env=self.environment, stderr=subprocess.DEVNULL)
        while left := children():
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
        if error[0] and issubclass(error[0], Exception) and not issubclass(error[0], Obstacle):
            self.show_logs()
        shutil.rmtree(self.folder)

    def start(self):
        if self.hosts:
            subprocess.run([NODES, "up", *self.hosts], env=self.environment, check=True)
        for name in ("state", *(f"{kind}.{node}" for kind in ("spool", "tmp") for node in self.nodes)):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        controller, node = free_ports()
        text = CONFIGURATION.format(folder=self.folder, controller_port=controller, node_port=node, host=self.nodes[0],
                                    nodes=",".join(self.nodes))
        (self.folder / "slurm.conf").write_text(text)
        self.daemon(self.nodes[0], "munged", "--foreground", f"--key-file={key}", *(f"--{name}-file={self.folder}/munged.{name}" for name in ("pid", "seed")),
                    f"--socket={self.folder}/munge.socket")
        self.wait_for("munged", (self.folder / "munge.socket").exists, 10)
        self.daemon(self.nodes[0], "slurmctld", "-D", "-f", self.environment["SLURM_CONF"])
        processors = sorted(os.sched_getaffinity(0))
        for number, name in enumerate(self.nodes):
            # Each node has separate processors, as hosts have. Where ranks of two nodes spin on the same one, a kernel that
            # divides time between sessions (sched_autogroup) was seen to let one wait for minutes.
            share = processors[number::len(self.nodes)] or processors
            self.daemon(name, "slurmd", "-D", "-N", name, "-f", self.environment["SLURM_CONF"], processors=share)
        idle = "\n".join(["idle"] * len(self.nodes))
        self.wait_for("the nodes", lambda: self.client("sinfo", "--noheader", "--Node", "--format=%t") == idle, 30)

    def show_logs(self):
        for log in sorted(self.folder.glob("*.log")):
            print(f"--- {log.name}", *log.read_text().splitlines()[-20:], sep="\n", file=sys.stderr)

    def on(self, node, *command):
        """What runs the command on the node."""
        return [NODES, "in", node, *command] if self.hosts else [*command]

    def daemon(self, node, name, *arguments, processors=()):
        """Starts it in a new session, out of reach of Ctrl-C; it dies with us, however we end (hosts do not)."""
        with open(self.folder / f"{name}.{node}.log", "w") as log:
            bound = [find("taskset"), "--cpu-list", ",".join(map(str, processors))] if processors else []
            command = [find("setpriv"), "--pdeathsig", "KILL", *self.on(node, *bound, find(name), *arguments)]
            self.daemons.append((name, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                        env=self.environment, start_new_session=True)))

    def client(self, *command):
        result = subprocess.run(self.on(self.nodes[0], *command), env=self.environment, capture_output=True, text=True, timeout=20)
        return result.stdout.strip()

    def run(self, command):
        return subprocess.run(self.on(self.nodes[0], *command), env=self.environment).returncode

    def wait_for(self, what, ready, limit, fatal=True):
        end = time.monotonic() + limit
        while not ready():
            for name, daemon in self.daemons:
                if daemon.poll() is not None and fatal:
                    raise RuntimeError(f"{name} ended with {daemon.returncode}")
            if time.monotonic() > end:
                if fatal:
                    raise RuntimeError(f"no {what} within {limit} s")
                return
            time.sleep(0.1)


def children():
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if entry.read_text().rpartition(")")[2].split()[1] == str(os.getpid()):
                found.append(int(entry.parent.name))
    return found


def stop(number, frame):
    """Once only: a second signal must not cut the cleaning up short."""
    for other in (signal.SIGTERM, signal.SIGINT):
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)


def main(command):
    nodes = []
    if command[0] == "--nodes":
        nodes = command[1].split(",")
        command = command[2:]
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        check_machine(nodes)
        with Cluster(nodes) as cluster:
            code = cluster.run(command)
            if code:
                cluster.show_logs()
            return code
    except Obstacle as obstacle:
        print(f"skipped: {obstacle}")
        return SKIPPED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
