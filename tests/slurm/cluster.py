#!/usr/bin/python3
"""A private Slurm of one node: cluster.py COMMAND... runs COMMAND in it and ends with its code; 77 where it cannot be.

Key, sockets, ports, state and logs are its own, in a temporary folder, so that it meets no other Slurm of the machine.
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
CLIENTS = ["sbatch", "srun", "scontrol", "scancel", "squeue", "sinfo"]
PR_SET_CHILD_SUBREAPER = 36

# More CPUs than there are: four ranks should start on a small machine. cred_expire is what a requeued job waits before it
# starts again, 120 s by default. linuxproc and task/none do without cgroups, which containers seldom lend. TmpFS keeps
# PMIx's folders apart: they are named after jobs, whose numbers begin at 1 each time, and one left behind stops a start.
CONFIGURATION = """
ClusterName=maestro-test
SlurmctldHost=localhost
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
TmpFS={folder}/tmp
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
ReturnToService=2
NodeName=localhost CPUs=8
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def find(program):
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def obstacle():
    """Why no Slurm can be started here, or nothing."""
    if os.geteuid() != 0:
        return "slurmd has to be root"
    if not os.path.ismount("/sys/fs/cgroup"):
        return "no control groups are mounted on /sys/fs/cgroup, without which slurmd does not start"
    missing = [program for program in [*DAEMONS, *CLIENTS, "setpriv"] if not find(program)]
    return f"not installed: {', '.join(missing)}" if missing else None


def free_ports():
    with socket.socket() as first, socket.socket() as second:
        for probe in (first, second):
            probe.bind(("", 0))
        return first.getsockname()[1], second.getsockname()[1]


class Cluster:
    """As a context: the node is idle at the start; at the end no job and no daemon is left."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="maestro-slurm-"))
        self.folder.chmod(0o711)  # munged wants its socket to be within everyone's reach
        foreign = ("SLURM", "SBATCH_", "SRUN_")  # we may be in a job ourselves
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
        self.environment["SLURM_CONF"] = str(self.folder / "slurm.conf")
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
            if len(self.daemons) == len(DAEMONS):
                self.client("scancel", "--user=root", "--signal=KILL", "--full")
                self.client("scancel", "--user=root")
                self.wait_for("jobs to end", lambda: not self.client("squeue", "--noheader"), 15, fatal=False)
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(5)
            except subprocess.TimeoutExpired:
                daemon.kill()
        while left := children():
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
        if error[0] and issubclass(error[0], Exception):
            self.show_logs()
        shutil.rmtree(self.folder)

    def start(self):
        for name in ("state", "spool", "tmp"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        controller, node = free_ports()
        text = CONFIGURATION.format(folder=self.folder, controller_port=controller, node_port=node)
        (self.folder / "slurm.conf").write_text(text)
        self.daemon("munged", "--foreground", f"--key-file={key}", *(f"--{name}-file={self.folder}/munged.{name}" for name in ("pid", "seed")),
                    f"--socket={self.folder}/munge.socket")
        self.wait_for("munged", (self.folder / "munge.socket").exists, 10)
        self.daemon("slurmctld", "-D", "-f", self.environment["SLURM_CONF"])
        self.daemon("slurmd", "-D", "-N", "localhost", "-f", self.environment["SLURM_CONF"])
        self.wait_for("the node", lambda: self.client("sinfo", "--noheader", "--format=%t") == "idle", 30)

    def show_logs(self):
        for log in sorted(self.folder.glob("*.log")):
            print(f"--- {log.name}", *log.read_text().splitlines()[-20:], sep="\n", file=sys.stderr)

    def daemon(self, name, *arguments):
        """Starts it in a session of its own, out of reach of Ctrl-C; it dies with us, however we end."""
        with open(self.folder / f"{name}.log", "w") as log:
            command = [find("setpriv"), "--pdeathsig", "KILL", find(name), *arguments]
            self.daemons.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                 env=self.environment, start_new_session=True))

    def client(self, *command):
        result = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=20)
        return result.stdout.strip()

    def wait_for(self, what, ready, limit, fatal=True):
        end = time.monotonic() + limit
        while not ready():
            for daemon, name in zip(self.daemons, DAEMONS):
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
    reason = obstacle()
    if reason:
        print(f"skipped: {reason}")
        return SKIPPED
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    with Cluster() as cluster:
        code = subprocess.run(command, env=cluster.environment).returncode
        if code:
            cluster.show_logs()
        return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
