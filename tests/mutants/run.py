"""Do the tests notice mistakes? Copies the tree, builds the tests that mutants.toml names and runs them, which must be green;
then makes each mistake by itself, builds and runs again, which must be red and say why. The tree itself is not touched.

    tests/mutants/run.py [PART OF A NAME ...]     those whose name has one of these in it, otherwise all
    tests/mutants/run.py --copy FOLDER ...        keeps copy and build there, for the next time
"""

import argparse
import contextlib
import filecmp
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LEFT_OUT = {"build", "data", "runs", ".git"}  # of the root
LONGEST_S = 100  # of a test; one that hangs is red too, if it has said why before


def copy_changed(source, target):
    """A file that is there already keeps its time: what was built from a mutant of it is older, and is built again."""
    if not os.path.exists(target) or not filecmp.cmp(source, target, shallow=False):
        shutil.copyfile(source, target)
        shutil.copymode(source, target)


class Copy:
    def __init__(self, folder):
        self.folder = folder
        self.build_folder = folder / "build/cpu-release"
        self.environment = {**os.environ, "CCACHE_BASEDIR": str(folder), "CCACHE_NOHASHDIR": "1", "OMP_NUM_THREADS": "1"}

    def call(self, *command, timeout=None):
        # Of its own session, so that ranks do not outlive an mpirun that hangs.
        job = subprocess.Popen([str(word) for word in command], cwd=self.folder, env=self.environment, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, errors="replace", start_new_session=True)
        try:
            output, _ = job.communicate(timeout=timeout)
            return job.returncode, output
        except subprocess.TimeoutExpired:
            job.terminate()  # mpirun ends its ranks
            output, _ = job.communicate()
            return "no end", output

    def configure(self):
        launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
        code, output = self.call("cmake", "--preset", "cpu-release", "-DMAESTRO_BENCH=OFF", *launcher)
        if code != 0:
            sys.exit(f"the copy cannot be configured\n{output[-3000:]}")

    def build(self, targets):
        code, output = self.call("cmake", "--build", self.build_folder, "--target", *targets)
        if code != 0:
            sys.exit(f"the copy cannot be built: {' '.join(targets)}\n{output[-3000:]}")

    def run(self, mutant):
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", mutant["ranks"]]
        if "preload" in mutant:
            library = next(self.build_folder.rglob(f"lib{mutant['preload']}.so"))
            command += ["-x", f"LD_PRELOAD={library}"]
        return self.call(*command, self.build_folder / f"mpi_{mutant['test']}", timeout=LONGEST_S)

    @contextlib.contextmanager
    def changed(self, mutant):
        path = self.folder / mutant["file"]
        text = path.read_text()
        if text.count(mutant["old"]) != 1:
            sys.exit(f"{mutant['name']}: {mutant['file']} has {text.count(mutant['old'])} places for it, not one")
        path.write_text(text.replace(mutant["old"], mutant["new"]))
        try:
            yield
        finally:
            path.write_text(text)


def targets_of(mutant):
    return [f"mpi_{mutant['test']}"] + ([mutant["preload"]] if "preload" in mutant else [])


def check(copy, mutants):
    """Returns how many of them nobody noticed."""
    copy.configure()
    copy.build(sorted({target for m in mutants for target in targets_of(m)}))
    for test in {(m["test"], m["ranks"], m.get("preload")): m for m in mutants}.values():
        code, output = copy.run(test)
        if code != 0:
            sys.exit(f"{test['test']} on {test['ranks']} ranks is red without any mutant: {code}\n{output[-3000:]}")
    print(f"{len(mutants)} mutants; without them all is green", flush=True)
    alive = 0
    for mutant in mutants:
        start = time.monotonic()
        with copy.changed(mutant):
            copy.build(targets_of(mutant))
            code, output = copy.run(mutant)
        said = re.search(f".*({mutant['says']}).*", output)
        noticed = code != 0 and said
        alive += not noticed
        what = said[0].strip()[:150] if noticed else f"exit {code}\n{output[-2000:]}"
        print(f"{'red' if noticed else 'NOT NOTICED'}: {mutant['name']} ({mutant['test']}, {mutant['ranks']} ranks, "
              f"{time.monotonic() - start:.0f} s): {what}", flush=True)
    return alive


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*")
    options.add_argument("--copy", type=pathlib.Path)
    chosen = options.parse_args()
    mutants = [m for m in tomllib.loads((HERE / "mutants.toml").read_text())["mutant"]
               if not chosen.names or any(part in m["name"] for part in chosen.names)]
    if not mutants:
        sys.exit("no mutant has such a name")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (chosen.copy or pathlib.Path(temporary) / "tree").resolve()
        shutil.copytree(ROOT, folder, ignore=lambda at, _: LEFT_OUT if at == str(ROOT) else (), copy_function=copy_changed, dirs_exist_ok=True)
        sys.exit(1 if check(Copy(folder), mutants) else 0)


if __name__ == "__main__":
    main()
