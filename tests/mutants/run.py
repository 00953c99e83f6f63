"""Mutation testing: do the tests notice mistakes? First runs the tests that a list names, which must pass. Then makes each mistake of the
list, one at a time, in a copy of its file, compiles that copy, links it into the test instead of the correct object and runs the test again,
which must fail with the message that the list expects. Neither the source tree nor the build is changed, except that the build is brought up
to date.

    tests/mutants/run.py [PART OF A NAME ...]     the mutants whose name contains one of these; without, all
    tests/mutants/run.py --list cuda.toml ...     another list of this folder than mutants.toml
    MAESTRO_MUTANT_SHARE=2/5 tests/mutants/run.py ...    the second of five shares of the list
    tests/mutants/run.py --build FOLDER ...       another build than build/cpu-release, made by Ninja
    tests/mutants/run.py --check                  only whether the text that each mutant of every list replaces stands once in its file
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
# A test that runs longer, and longer than three times as long as without the mutant, has noticed it too, if it has printed the expected message.
LONGEST_S = 200
LONGEST_GREEN_S = 1200  # without any mutant, on a busy machine
TRIES = 3  # for tests of several ranks, whose timing differs from run to run


class Build:
    def __init__(self, folder):
        self.folder = folder
        self.scratch = folder / "mutants"
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_PERTURB_": "165", "MAESTRO_BINARY": str(folder / "maestro")}
        self.ranks = threading.Lock()  # ranks of one test at a time
        self.green_s = {}  # {target: times of its tests without any mutant}
        self.commands = json.loads((folder / "compile_commands.json").read_text())
        self.sources = {}  # {file: {target: the command that compiles it for this target}}

    def call(self, *command, timeout=None, elapsed_s=None, **environment):
        """Returns the exit code and the output; appends the seconds to the list `elapsed_s`."""
        begin = time.monotonic()
        # In a new session, so that no ranks outlive an mpirun that hangs.
        job = subprocess.Popen([str(word) for word in command], cwd=self.folder, env={**self.environment, **environment}, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, errors="replace", start_new_session=True)
        try:
            output, _ = job.communicate(timeout=timeout)
            if elapsed_s is not None:
                elapsed_s.append(time.monotonic() - begin)
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
        """Whether the build compiles the file that the mutant needs; it does not where a library is missing."""
        needed = mutant.get("needs")
        if needed is None or any(str(ROOT / needed) in sources_of(entry["file"]) for entry in self.commands):
            return True
        print(f"left out: {mutant['name']}: this build is without {needed}", flush=True)
        return False

    def prepare(self, targets):
        self.need(f"cannot be built: {' '.join(targets)}", "cmake", "--build", self.folder, "--target", *targets)
        for entry in self.commands:
            words = shlex.split(entry["command"])
            made = re.search(r"CMakeFiles/([^/]+)\.dir/", words[words.index("-o") + 1])
            for source in sources_of(entry["file"]):
                self.sources.setdefault(source, {})[made[1]] = words
        shutil.rmtree(self.scratch, ignore_errors=True)

    def link_of(self, target):
        output = self.need(f"no commands for {target}", "ninja", "-t", "commands", "-s", target)
        return next(words for words in map(shlex.split, output.split("&&")) if "-o" in words)

    def compile(self, folder, source, words):
        """Compiles `source`, or its changed copy in `folder` if there is one. Headers in `folder` come before all others."""
        words = list(words)
        made = folder / (source.name + ".o")
        changed = folder / include_path(source)
        compiler = 1 if pathlib.Path(words[0]).name == "ccache" else 0
        words[words.index("-o") + 1] = made
        words[words.index("-c") + 1] = changed if changed.exists() else ROOT / source
        if "-MF" in words:
            words[words.index("-MF") + 1] = f"{made}.d"
        self.need(f"{source} does not compile in {folder}", *words[:compiler + 1], f"-I{folder}", *words[compiler + 1:])
        return made

    def link(self, folder, mutant):
        """Links the test with the mutant's objects in front of the libraries that hold the correct ones: the linker takes the first definition,
        also where a unity build has the correct one in an object that it needs for others."""
        words, target = self.link_of(target_of(mutant)), folder / target_of(mutant)
        whole = slice(0, words.index("-Wl,--no-whole-archive") if "-Wl,--no-whole-archive" in words else 0)
        objects = []
        for source in map(pathlib.Path, mutant.get("objects", [mutant["file"]])):
            commands = self.sources[str(ROOT / source)]
            places = {name: i for name in commands for i, word in enumerate(words) if pathlib.Path(word).name == f"lib{name}.a" or f"/{name}.dir/" in word and word.endswith((f"/{source.name}.o", "_cxx.cxx.o"))}
            first = min(places, key=places.get)  # the linker takes the first definition
            objects.append(self.compile(folder, source, commands[first]))
            place = places[first]
            if words[place].endswith(f"/{source.name}.o"):
                words[place] = str(objects.pop())
            elif place < whole.stop and not is_unity(commands[first]):
                rest = folder / pathlib.Path(words[place]).name
                if not rest.exists():
                    shutil.copyfile(self.folder / words[place], rest)
                self.need(f"{rest} has no {source.name}.o", "ar", "d", rest, f"{source.name}.o")
                words[place] = str(rest)
        words[words.index("-o") + 1] = str(target)
        self.need(f"{target} cannot be linked", words[0], "-Wl,-z,muldefs", *objects, *words[1:])
        return target

    def make(self, mutant):
        folder = self.scratch / re.sub(r"\W+", "_", mutant["name"])
        changed = folder / include_path(mutant["file"])
        changed.parent.mkdir(parents=True)
        changed.write_text((ROOT / mutant["file"]).read_text().replace(mutant["old"], mutant["new"]))
        return self.link(folder, mutant)

    def run_green(self, test):
        elapsed_s = self.green_s.setdefault(target_of(test), [])
        return self.run(test, self.folder / target_of(test), LONGEST_GREEN_S, elapsed_s)

    def run(self, mutant, program, longest_s, elapsed_s=None):
        if "script" in mutant:
            with self.ranks:
                variable = "MAESTRO_BINARY" if mutant["test"] == "maestro" else "MAESTRO_HOSTED"
                return self.call(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", ROOT / mutant["script"], "-k", mutant["cases"],
                                 timeout=longest_s, elapsed_s=elapsed_s, **{variable: str(program), "PYTHONDONTWRITEBYTECODE": "1"})
        if "ranks" not in mutant:
            other = {"MAESTRO_HOSTED_ARCHITECTURE": str(mutant["architecture"])} if "architecture" in mutant else {}
            return self.call(program, f"--gtest_filter={mutant['cases']}", timeout=longest_s, elapsed_s=elapsed_s, **other)
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", mutant["ranks"]]
        if "preload" in mutant:
            library = next(self.folder.rglob(f"lib{mutant['preload']}.so"))
            command += ["-x", f"LD_PRELOAD={library}"]
        if "gpus" in mutant:
            command += ["-x", f"MAESTRO_HOSTED_DEVICES={mutant['gpus']}"]
        with self.ranks:
            return self.call(*command, program, timeout=longest_s, elapsed_s=elapsed_s)


def is_unity(words):
    return re.fullmatch(r"unity_\d+_cxx\.cxx", pathlib.Path(words[words.index("-c") + 1]).name) is not None


def sources_of(file):
    """The sources that are compiled with `file`: itself, or those that it includes as a batch of a unity build."""
    if not re.search(r"/Unity/unity_\d+_cxx\.cxx$", file):
        return [file]
    return re.findall(r'^#include "(.*)"$', pathlib.Path(file).read_text(), re.MULTILINE)


def include_path(file):
    """The path by which #include finds the file: without src/."""
    return pathlib.Path(*[part for part in pathlib.Path(file).parts if part != "src"])


def target_of(mutant):
    return f"mpi_{mutant['test']}" if "ranks" in mutant and "gpus" not in mutant else mutant["test"]


def spread(tests):
    """The tests in an order that spreads those under mpirun, which run one at a time, evenly among the others."""
    kinds = [[t for t in tests if ("ranks" in t or "script" in t) == of_ranks] for of_ranks in (False, True)]
    places = [(place / len(kind), test) for kind in kinds for place, test in enumerate(kind)]
    return [test for _, test in sorted(places, key=lambda pair: pair[0])]


def share_of(mutants):
    """Those of the share that MAESTRO_MUTANT_SHARE names, such as 2/5; all without it."""
    share, shares = map(int, os.environ.get("MAESTRO_MUTANT_SHARE", "1/1").split("/"))
    return mutants[share - 1::shares]


def read(path):
    return tomllib.loads(path.read_text())["mutant"]


def check_texts(mutants):
    """Ends the program where a mutant does not fit the source tree; names all such mutants."""
    names = [mutant["name"] for mutant in mutants]
    wrong = [f"two mutants have the name {name!r}" for name in sorted({name for name in names if names.count(name) > 1})]
    for mutant in mutants:
        path = ROOT / mutant["file"]
        count = path.read_text().count(mutant["old"]) if path.exists() else 0
        if count != 1:
            wrong.append(f"{mutant['name']}: {mutant['file']} contains its text {count} times, not once:\n{mutant['old']}")
        sources = mutant.get("objects", [mutant["file"]])
        wrong += [f"{mutant['name']}: {source} is no source to compile; name those that include it as `objects`"
                  for source in sources if not source.endswith((".cpp", ".cu")) or not (ROOT / source).exists()]  # fmt: skip
    if wrong:
        sys.exit("\n".join(wrong))


def check_green(build, mutants, pool):
    tests = {}
    for m in mutants:
        same = tests.setdefault((target_of(m), m.get("ranks"), m.get("preload"), m.get("script"), m.get("architecture")), {**m, "cases": set()})
        same["cases"].add(m.get("cases", ""))
    for test in tests.values():
        test["filtered"] = test["cases"] != {""}
        test["cases"] = (" or " if "script" in test else ":").join(sorted(test["cases"]))
    tests = spread(list(tests.values()))
    for test, (code, output) in zip(tests, pool.map(build.run_green, tests)):
        ran = re.search(r"PASSED  \] (\d+) test|(\d+) passed", output) if test["filtered"] else True
        if code != 0 or not ran or (ran is not True and ran[1] == "0"):
            sys.exit(f"{target_of(test)} fails, or runs no test, without any mutant: {code}\n{output[-3000:]}")
        for m in mutants:
            if target_of(m) == target_of(test) and (found := re.search(m["says"], output)):
                sys.exit(f"{m['name']}: {target_of(test)} prints {found[0]!r} without it, too")


def notice(build, mutant):
    """Whether the test fails for the expected reason."""
    start = time.monotonic()
    longest_s = max(LONGEST_S, 3 * max(build.green_s[target_of(mutant)]))
    try:
        program = build.make(mutant)
        for _ in range(TRIES if mutant.get("ranks", 1) > 1 else 1):
            code, output = build.run(mutant, program, longest_s)
            if code != 0:
                break
    except RuntimeError as error:
        print(f"CANNOT BE MADE: {mutant['name']}: {error}", flush=True)
        return False
    message = re.search(f".*({mutant['says']}).*", output)
    noticed = code != 0 and message is not None
    what = message[0].strip()[:150] if noticed else f"exit {code}\n{output[-2000:]}"
    where = f"{mutant['test']}, {mutant['ranks']} ranks" if "ranks" in mutant else f"{mutant['test']} {mutant['cases']}"
    print(f"{'red' if noticed else 'NOT NOTICED'}: {mutant['name']} ({where}, {time.monotonic() - start:.0f} s): {what}", flush=True)
    return noticed


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*")
    options.add_argument("--list", default="mutants.toml")
    options.add_argument("--build", type=pathlib.Path, default=ROOT / "build/cpu-release")
    options.add_argument("--jobs", type=int, default=max(2, len(os.sched_getaffinity(0))))
    options.add_argument("--check", action="store_true")
    chosen = options.parse_args()
    if chosen.check:
        for path in sorted(HERE.glob("*.toml")):
            check_texts(mutants := read(path))
            print(f"{path.name}: {len(mutants)} mutants fit their files")
        return
    mutants = [m for m in read(HERE / chosen.list) if not chosen.names or any(part in m["name"] for part in chosen.names)]
    if not mutants:
        sys.exit("no mutant has such a name")
    check_texts(mutants)
    mutants = share_of(mutants)
    build = Build(chosen.build.resolve())
    mutants = [m for m in mutants if build.has(m)]
    build.prepare(sorted({target_of(m) for m in mutants} | {m["preload"] for m in mutants if "preload" in m}))
    with concurrent.futures.ThreadPoolExecutor(chosen.jobs) as pool:
        check_green(build, mutants, pool)
        print(f"{len(mutants)} mutants; without them all is green", flush=True)
        noticed = list(pool.map(lambda mutant: notice(build, mutant), spread(mutants)))
    sys.exit(0 if all(noticed) else 1)


if __name__ == "__main__":
    main()
