"""Do the tests notice mistakes? Runs the tests that a list names, which must be green; then makes each mistake by itself in a
copy of its file, compiles what it is in, links it into the test in the place of the right one and runs again, which must be red
and say why. Neither the tree nor what is built is touched.

    tests/mutants/run.py [PART OF A NAME ...]     those whose name has one of these in it, otherwise all
    tests/mutants/run.py --list cuda.toml ...     another list than mutants.toml, of this folder
    tests/mutants/run.py --shares N ...           one of N shares of them, which one is up to the commit
    tests/mutants/run.py --build FOLDER ...       another build than build/cpu-release, by Ninja too; it is brought up to date
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LONGEST_S = 100  # of a test; one that hangs is red too, if it has said why before
TRIES = 3  # of a test of several ranks: which of them is late is up to the machine


class Build:
    def __init__(self, folder):
        self.folder = folder
        self.scratch = folder / "mutants"
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_PERTURB_": "165", "MAESTRO_BINARY": str(folder / "maestro")}
        self.ranks = threading.Lock()  # ranks of one test at a time
        self.commands = json.loads((folder / "compile_commands.json").read_text())
        self.sources = {}  # file: how it is compiled, by what it becomes part of

    def call(self, *command, timeout=None, **environment):
        # Of its own session, so that ranks do not outlive an mpirun that hangs.
        job = subprocess.Popen([str(word) for word in command], cwd=self.folder, env={**self.environment, **environment}, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, errors="replace", start_new_session=True)
        try:
            output, _ = job.communicate(timeout=timeout)
            return job.returncode, output
        except subprocess.TimeoutExpired:
            job.terminate()  # mpirun ends its ranks
            output, _ = job.communicate()
            return "no end", output

    def need(self, what, *command):
        code, output = self.call(*command)
        if code != 0:
            raise RuntimeError(f"{what}\n{output[-3000:]}")
        return output

    def has(self, mutant):
        """Whether the build has the file that the mutant needs: a library that it works with may be missing."""
        needed = mutant.get("needs")
        if needed is None or any(entry["file"] == str(ROOT / needed) for entry in self.commands):
            return True
        print(f"left out: {mutant['name']}: this build is without {needed}", flush=True)
        return False

    def prepare(self, targets):
        self.need(f"cannot be built: {' '.join(targets)}", "cmake", "--build", self.folder, "--target", *targets)
        for entry in self.commands:
            words = shlex.split(entry["command"])
            made = re.search(r"CMakeFiles/([^/]+)\.dir/", words[words.index("-o") + 1])
            self.sources.setdefault(entry["file"], {})[made[1]] = words
        shutil.rmtree(self.scratch, ignore_errors=True)

    def link_of(self, target):
        output = self.need(f"no commands for {target}", "ninja", "-t", "commands", "-s", target)
        return next(words for words in map(shlex.split, output.split("&&")) if "-o" in words)

    def compile(self, room, source, words):
        """`source` as it is, or what stands in its place in `room`. Headers there come before all others."""
        words = list(words)
        made = room / (source.name + ".o")
        changed = room / inside(source)
        compiler = 1 if pathlib.Path(words[0]).name == "ccache" else 0
        words[words.index("-o") + 1] = made
        words[words.index("-c") + 1] = changed if changed.exists() else ROOT / source
        if "-MF" in words:
            words[words.index("-MF") + 1] = f"{made}.d"
        self.need(f"{source} does not compile in {room}", *words[:compiler + 1], f"-I{room}", *words[compiler + 1:])
        return made

    def link(self, room, mutant):
        """The test with the mutant's objects in it: they come before the libraries that have the right ones, and where all of a
        library is taken it is taken without them."""
        words, target = self.link_of(target_of(mutant)), room / target_of(mutant)
        whole = slice(0, words.index("-Wl,--no-whole-archive") if "-Wl,--no-whole-archive" in words else 0)
        objects = []
        for source in map(pathlib.Path, mutant.get("objects", [mutant["file"]])):
            ways = self.sources[str(ROOT / source)]
            places = {name: i for name in ways for i, word in enumerate(words) if pathlib.Path(word).name == f"lib{name}.a" or f"/{name}.dir/" in word and word.endswith(f"/{source.name}.o")}
            owner = min(places, key=places.get)  # what is linked first counts
            objects.append(self.compile(room, source, ways[owner]))
            place = places[owner]
            if words[place].endswith(".o"):
                words[place] = str(objects.pop())
            elif place < whole.stop:
                rest = room / pathlib.Path(words[place]).name
                if not rest.exists():
                    shutil.copyfile(self.folder / words[place], rest)
                self.need(f"{rest} has no {source.name}.o", "ar", "d", rest, f"{source.name}.o")
                words[place] = str(rest)
        words[words.index("-o") + 1] = str(target)
        self.need(f"{target} cannot be linked", words[0], *objects, *words[1:])
        return target

    def make(self, mutant):
        room = self.scratch / re.sub(r"\W+", "_", mutant["name"])
        changed = room / inside(mutant["file"])
        changed.parent.mkdir(parents=True)
        changed.write_text((ROOT / mutant["file"]).read_text().replace(mutant["old"], mutant["new"]))
        return self.link(room, mutant)

    def run(self, mutant, program):
        if "script" in mutant:
            with self.ranks:
                return self.call(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", ROOT / mutant["script"], "-k", mutant["cases"],
                                 timeout=LONGEST_S, MAESTRO_HOSTED=str(program), PYTHONDONTWRITEBYTECODE="1")
        if "ranks" not in mutant:
            other = {"MAESTRO_HOSTED_ARCHITECTURE": str(mutant["architecture"])} if "architecture" in mutant else {}
            return self.call(program, f"--gtest_filter={mutant['cases']}", timeout=LONGEST_S, **other)
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", mutant["ranks"]]
        if "preload" in mutant:
            library = next(self.folder.rglob(f"lib{mutant['preload']}.so"))
            command += ["-x", f"LD_PRELOAD={library}"]
        if "gpus" in mutant:
            command += ["-x", f"MAESTRO_HOSTED_DEVICES={mutant['gpus']}"]
        with self.ranks:
            return self.call(*command, program, timeout=LONGEST_S)


def inside(file):
    """Where a file is found by includes: folders of src stand for themselves."""
    return pathlib.Path(*[part for part in pathlib.Path(file).parts if part != "src"])


def target_of(mutant):
    return f"mpi_{mutant['test']}" if "ranks" in mutant and "gpus" not in mutant else mutant["test"]


def apart(tests):
    """Those of ranks, which run one at a time, spread among the others."""
    kinds = [[t for t in tests if ("ranks" in t or "script" in t) == of_ranks] for of_ranks in (False, True)]
    places = [(place / len(kind), test) for kind in kinds for place, test in enumerate(kind)]
    return [test for _, test in sorted(places, key=lambda pair: pair[0])]


def share_of(mutants, shares):
    """One of so many shares, by the commit that is checked out; all where there is none."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    if shares == 1 or commit.returncode != 0:
        return mutants
    share = int(commit.stdout[:8], 16) % shares
    print(f"share {share + 1} of {shares}, by commit {commit.stdout[:12]}", flush=True)
    return mutants[share::shares]


def check_texts(mutants):
    for mutant in mutants:
        count = (ROOT / mutant["file"]).read_text().count(mutant["old"])
        if count != 1:
            sys.exit(f"{mutant['name']}: {mutant['file']} has {count} places for it, not one")


def check_green(build, mutants, pool):
    tests = {}
    for m in mutants:
        same = tests.setdefault((target_of(m), m.get("ranks"), m.get("preload"), m.get("script"), m.get("architecture")), {**m, "cases": set()})
        same["cases"].add(m.get("cases", ""))
    for test in tests.values():
        test["filtered"] = test["cases"] != {""}
        test["cases"] = (" or " if "script" in test else ":").join(sorted(test["cases"]))
    tests = apart(list(tests.values()))
    for test, (code, output) in zip(tests, pool.map(lambda test: build.run(test, build.folder / target_of(test)), tests)):
        ran = re.search(r"PASSED  \] (\d+) test|(\d+) passed", output) if test["filtered"] else True
        if code != 0 or not ran or (ran is not True and ran[1] == "0"):
            sys.exit(f"{target_of(test)} is red, or runs nothing, without any mutant: {code}\n{output[-3000:]}")
        for m in mutants:
            if target_of(m) == target_of(test) and (said := re.search(m["says"], output)):
                sys.exit(f"{m['name']}: {target_of(test)} says {said[0]!r} without it too")


def notice(build, mutant):
    """Whether its test is red for the right reason."""
    start = time.monotonic()
    try:
        program = build.make(mutant)
        for _ in range(TRIES if mutant.get("ranks", 1) > 1 else 1):
            code, output = build.run(mutant, program)
            if code != 0:
                break
    except RuntimeError as error:
        print(f"CANNOT BE MADE: {mutant['name']}: {error}", flush=True)
        return False
    said = re.search(f".*({mutant['says']}).*", output)
    noticed = code != 0 and said is not None
    what = said[0].strip()[:150] if noticed else f"exit {code}\n{output[-2000:]}"
    where = f"{mutant['test']}, {mutant['ranks']} ranks" if "ranks" in mutant else f"{mutant['test']} {mutant['cases']}"
    print(f"{'red' if noticed else 'NOT NOTICED'}: {mutant['name']} ({where}, {time.monotonic() - start:.0f} s): {what}", flush=True)
    return noticed


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*")
    options.add_argument("--list", default="mutants.toml")
    options.add_argument("--build", type=pathlib.Path, default=ROOT / "build/cpu-release")
    options.add_argument("--shares", type=int, default=1)
    options.add_argument("--jobs", type=int, default=2)
    chosen = options.parse_args()
    mutants = [m for m in tomllib.loads((HERE / chosen.list).read_text())["mutant"]
               if not chosen.names or any(part in m["name"] for part in chosen.names)]
    if not mutants:
        sys.exit("no mutant has such a name")
    check_texts(mutants)
    mutants = share_of(mutants, chosen.shares)
    build = Build(chosen.build.resolve())
    mutants = [m for m in mutants if build.has(m)]
    build.prepare(sorted({target_of(m) for m in mutants} | {m["preload"] for m in mutants if "preload" in m}))
    with concurrent.futures.ThreadPoolExecutor(chosen.jobs) as pool:
        check_green(build, mutants, pool)
        print(f"{len(mutants)} mutants; without them all is green", flush=True)
        noticed = list(pool.map(lambda mutant: notice(build, mutant), apart(mutants)))
    sys.exit(0 if all(noticed) else 1)


if __name__ == "__main__":
    main()
