"""Builds the programs of gpu_check with nvcc and g++ alone, where CMake is missing or too old. What is compiled, and how, is what
cmake/gpu_check.cmake compiles: both read cmake/gpu_check_sources.txt, and tests/gpu_check/test_build.py compares them."""

from __future__ import annotations  # for Python 3.9

import hashlib
import os
import pathlib
import re
import shlex
import shutil
import sysconfig
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parents[2]
LISTS = ROOT / "cmake/gpu_check_sources.txt"
STAND_INS = ROOT / "tests/gpu_check/stand_ins"
OLDEST_CUDA = (12, 4)  # as in cmake/cuda_libraries.cmake
OLDEST_CUDNN = (9, 18)  # as in cmake/cudnn.cmake


@dataclass
class Lists:
    """The contents of gpu_check_sources.txt."""
    folders: list = field(default_factory=list)
    without: list = field(default_factory=list)
    programs: dict = field(default_factory=dict)  # name: globs

    def kept(self, paths):
        return sorted(path for path in paths if not any(re.search(expression, str(path)) for expression in self.without))


def read_lists():
    lists = Lists()
    for line in LISTS.read_text().splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if words[0] == "libraries":
            lists.folders += words[1:]
        elif words[0] == "without":
            lists.without += words[1:]
        else:
            lists.programs[words[1]] = words[2:]
    return lists


def library_sources(lists, cudnn, nccl):
    """The sources of src/, by the rules of maestro_library() in cmake/library.cmake."""
    sources = [path.relative_to(ROOT) for folder in lists.folders for path in (ROOT / "src" / folder).rglob("*.cpp")]
    replaced = ["no_cuda.cpp", "no_cudnn.cpp" if cudnn else "", "no_nccl.cpp" if nccl else ""]
    sources = [path for path in sources if path.name not in replaced and (nccl or "nccl" not in path.parts)
               and (cudnn or not path.name.startswith("cudnn_"))]
    return lists.kept(sources)


def program_sources(lists, name):
    return lists.kept({path.relative_to(ROOT) for glob in lists.programs[name] for path in ROOT.glob(glob)})


def kernel_sources():
    """With the second forms, which only nvcc compiles."""
    return sorted(path.relative_to(ROOT) for path in (ROOT / "kernels").rglob("*.cu"))


@dataclass
class Toolkit:
    """Where CUDA's files are, and those of its libraries."""
    nvcc: str
    includes: list
    libraries: list
    definitions: dict = field(default_factory=dict)  # --define NAME=VALUE

    def header(self, name, more=()):
        """The first folder that has it, or None."""
        return next((folder for folder in [*more, *self.includes, *system_includes()] if (folder / name).is_file()), None)

    def library(self, *names, more=()):
        return next((folder / name for folder in [*more, *self.libraries, *system_libraries()] for name in names
                     if (folder / name).is_file()), None)


def system_includes():
    return [pathlib.Path("/usr/include"), *pathlib.Path("/usr/include").glob("*-linux-gnu"), pathlib.Path("/usr/local/include")]


def system_libraries():
    return [*pathlib.Path("/usr/lib").glob("*-linux-gnu"), pathlib.Path("/usr/lib64"), pathlib.Path("/usr/lib"), pathlib.Path("/usr/local/lib")]


def package_folders(environment):
    """Folders into which wheels are installed: of an environment, or of this Python."""
    folders = []
    if environment:
        folders += [*pathlib.Path(environment).glob("lib/python3*/site-packages"), pathlib.Path(environment)]
    folders += [ROOT / "build/cudnn/python", pathlib.Path(sysconfig.get_paths()["purelib"]), pathlib.Path(sysconfig.get_paths()["platlib"])]
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


def find_toolkit(definitions):
    """Returns the toolkit, or the reason why there is none."""
    wheels = package_folders(definitions.get("MAESTRO_CUDA_WHEELS"))
    of_wheels = [path for folder in wheels for path in sorted((folder / "nvidia").glob("*")) if path.is_dir()]
    nvcc = next((str(path / "bin/nvcc") for path in of_wheels if definitions.get("MAESTRO_CUDA_WHEELS") and (path / "bin/nvcc").is_file()),
                None) or shutil.which("nvcc")
    if nvcc is None:
        return "nvcc was not found on PATH or in /usr/local/cuda/bin"
    root = pathlib.Path(nvcc).resolve().parents[1]
    places = [root, *root.glob("targets/*-linux"), *of_wheels]
    toolkit = Toolkit(nvcc, [path / "include" for path in places if (path / "include").is_dir()],
                      [path / name for path in places for name in ("lib64", "lib") if (path / name).is_dir()], definitions)
    found = cuda_version(toolkit)
    if found < OLDEST_CUDA:
        return f"CUDA {dotted(found)} of {nvcc} is older than {dotted(OLDEST_CUDA)}" if any(found) else f"there is no cuda_runtime_api.h for {nvcc}"
    if toolkit.header("cublasLt.h") is None:
        return f"there is no cublasLt.h for {nvcc}"
    return toolkit


def dotted(version):
    return ".".join(map(str, version))


@dataclass
class Cudnn:
    definitions: list = field(default_factory=list)
    includes: list = field(default_factory=list)
    library: pathlib.Path | None = None
    why_not: str = ""


def find_cudnn(toolkit):
    """cuDNN and its front end, as cmake/cudnn.cmake finds them."""
    root = toolkit.definitions.get("MAESTRO_CUDNN_ROOT")
    packages = [*(package_folders(root) if root else []), *package_folders(toolkit.definitions.get("MAESTRO_CUDA_WHEELS"))]
    headers = [*([pathlib.Path(root) / "include"] if root else []), *(folder / "include" for folder in packages),
               *(folder / "nvidia/cudnn/include" for folder in packages)]
    libraries = [*([pathlib.Path(root) / name for name in ("lib", "lib64")] if root else []), *(folder / "nvidia/cudnn/lib" for folder in packages)]
    front_end = toolkit.header("cudnn_frontend.h", headers)
    include = toolkit.header("cudnn_version.h", [*headers[:1], *toolkit.includes, *headers] if root else [*toolkit.includes, *headers])
    library = toolkit.library("libcudnn.so.9", more=[*libraries[:2], *toolkit.libraries, *libraries] if root else [*toolkit.libraries, *libraries])
    if front_end is None:
        return Cudnn(why_not="no cudnn_frontend.h (MAESTRO_CUDNN_ROOT, or a bundle)")
    if include is None or library is None:
        return Cudnn(why_not="no cudnn_version.h" if include is None else "no libcudnn.so.9")
    numbers = re.findall(r"#define CUDNN_(?:MAJOR|MINOR|PATCHLEVEL) (\d+)", (include / "cudnn_version.h").read_text())
    version = tuple(map(int, numbers[:3]))
    if version < OLDEST_CUDNN:
        return Cudnn(why_not=f"cuDNN {'.'.join(numbers[:3])} in {include} is older than {dotted(OLDEST_CUDNN)}")
    runtime = toolkit.library(name := f"libcudart.so.{cuda_version(toolkit)[0]}") or name
    return Cudnn(["NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING", f'MAESTRO_CUDNN_LIBRARY="{library}"', f'MAESTRO_CUDART_LIBRARY="{runtime}"'],
                 list(dict.fromkeys([front_end, include])), library)


def cuda_version(toolkit):
    """(0, 0): unknown."""
    header = toolkit.header("cuda_runtime_api.h")
    found = re.search(r"#define CUDART_VERSION +(\d+)", (header / "cuda_runtime_api.h").read_text()) if header else None
    return (int(found.group(1)) // 1000, int(found.group(1)) % 1000 // 10) if found else (0, 0)


@dataclass
class Nccl:
    include: pathlib.Path | None = None
    library: pathlib.Path | None = None

    def __bool__(self):
        return self.include is not None and self.library is not None and self.library.is_file()


def find_nccl(toolkit):
    wheels = [folder / "nvidia/nccl" for folder in package_folders(toolkit.definitions.get("MAESTRO_CUDA_WHEELS"))]
    include = toolkit.definitions.get("MAESTRO_NCCL_INCLUDE")
    library = toolkit.definitions.get("MAESTRO_NCCL")
    return Nccl(pathlib.Path(include) if include else toolkit.header("nccl.h", [path / "include" for path in wheels]),
                pathlib.Path(library) if library else toolkit.library("libnccl.so", "libnccl.so.2", more=[path / "lib" for path in wheels]))


class PlainBuild:
    def __init__(self, toolkit, folder, architecture):
        self.toolkit, self.folder, self.architecture = toolkit, folder, architecture
        self.lists = read_lists()
        self.cudnn = find_cudnn(toolkit)
        self.nccl = find_nccl(toolkit)
        self.compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
        self.has_fmt = toolkit.header("fmt/ranges.h") is not None and toolkit.library("libfmt.so", "libfmt.a") is not None
        self.has_googletest = toolkit.header("gmock/gmock.h") is not None and toolkit.library("libgtest.a", "libgtest.so") is not None

    def stand_ins(self):
        return [name for name, found in (("fmt", self.has_fmt), ("GTest", self.has_googletest)) if not found]

    def includes(self):
        stand_ins = ["mpi", "xxhash", *([] if self.has_fmt else ["fmt"]), *([] if self.has_googletest else ["googletest"])]
        return [self.folder / "include", ROOT / "tests", ROOT / "tests/gpu_check", *(STAND_INS / name for name in stand_ins)]

    def make_include_folder(self):
        """Links to the folders whose headers are included as FOLDER/NAME, and to no others."""
        folder = self.folder / "include"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, place in {**{name: f"src/{name}" for name in self.lists.folders}, "kernels": "kernels", "train/step": "src/train/step"}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).symlink_to(ROOT / place)

    def system_includes(self):
        places = [*self.toolkit.includes, *self.cudnn.includes, *([self.nccl.include] if self.nccl else [])]
        return [path for path in dict.fromkeys(places) if path not in system_includes()]

    def definitions(self):
        version = re.search(r"project\(maestro VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
        return [f'MAESTRO_VERSION="{version}"', "MAESTRO_CUDA", f'MAESTRO_SOURCE_DIR="{ROOT}"', *self.cudnn.definitions]

    def compile_command(self, source):
        common = ["-std=c++20", "-DNDEBUG", *(f"-I{folder}" for folder in self.includes())]
        if source.suffix == ".cu":
            return [self.toolkit.nvcc, "-ccbin", self.compiler, *common, "-DMAESTRO_NVCC_FORMS", "-O3", "--expt-relaxed-constexpr", "-Xcompiler=-fPIC",
                    f"-gencode=arch=compute_{self.architecture},code=[compute_{self.architecture},sm_{self.architecture}]"]
        front = source.name in ("cudnn_graph.cpp", "cudnn_execution.cpp")
        optimize = ["-O1", "-DCUDNN_FRONTEND_SKIP_JSON_LIB"] if front else ["-O3"]
        return [self.compiler, *common, *optimize, "-fPIC", "-fopenmp", *(f"-D{word}" for word in self.definitions()),
                *(word for folder in self.system_includes() for word in ("-isystem", folder))]

    def object_of(self, source):
        return self.folder / "objects" / f"{'_'.join(source.with_suffix('').parts)}.o"

    def sources_of(self, program):
        stand_in = [(STAND_INS / "googletest/gtest_main.cpp").relative_to(ROOT)] if program.startswith("gpu_unit_") and not self.has_googletest else []
        return [*program_sources(self.lists, program), *stand_in]

    def shared_sources(self):
        return [*kernel_sources(), *library_sources(self.lists, not self.cudnn.why_not, bool(self.nccl))]

    def sources(self):
        """All of them, those that take longest first."""
        found = dict.fromkeys([*self.shared_sources(), *(source for program in self.lists.programs for source in self.sources_of(program))])
        return sorted(found, key=lambda source: (source.name not in ("cudnn_graph.cpp", "cudnn_execution.cpp"), source.suffix != ".cu"))

    def link_command(self, program):
        runtime = self.toolkit.library("libcudart_static.a")
        loaded = [*self.toolkit.libraries, *([self.cudnn.library.parent] if self.cudnn.library else []), *([self.nccl.library.parent] if self.nccl else [])]
        googletest = ["-lgmock", "-lgtest", "-lgtest_main"] if program.startswith("gpu_unit_") and self.has_googletest else []
        return [self.compiler, "-fopenmp", "-o", self.folder / program, *map(self.object_of, self.sources_of(program)), self.archive(), *googletest,
                *(["-lfmt"] if self.has_fmt else []), *([self.nccl.library] if self.nccl else []), runtime or "-lcudart_static", "-ldl", "-lrt", "-lpthread",
                *(f"-Wl,-rpath,{folder}" for folder in dict.fromkeys(loaded))]

    def archive(self):
        return self.folder / "libshared.a"


def is_current(result, command):
    """Whether the object is newer than all that it was made of, and was made by this command."""
    dependencies, stamp = result.with_suffix(".d"), result.with_suffix(".sum")
    if not result.is_file() or not dependencies.is_file() or not stamp.is_file() or stamp.read_text() != sum_of(command):
        return False
    made = result.stat().st_mtime
    files = dependencies.read_text().replace("\\\n", " ").split(":", 1)[-1].split()
    return all(os.path.exists(file) and os.path.getmtime(file) <= made for file in files)


def sum_of(command):
    return hashlib.sha256(shlex.join(map(str, command)).encode()).hexdigest()


def run(steps, build, jobs, limit):
    """Compiles and links. Returns (why it failed or "", seconds)."""
    begin = steps.left()
    end = begin - limit  # of the time that is left
    (build.folder / "objects").mkdir(parents=True, exist_ok=True)
    build.make_include_folder()
    failed, bad = [], set()  # messages; sources that do not compile
    lock = threading.Lock()

    def step(name, command):
        done = steps.run(name, command, max(0.0, steps.left() - max(end, 0.0)))
        if done.status != 0:
            error = next((line for line in done.text.splitlines() if re.search(r"\b(error|undefined reference)\b", line)), "")
            with lock:
                failed.append(f"{name[len('build_'):]}: {error.strip()[:300] or done.why()}")
        return done.status == 0

    def compile_one(source):
        result = build.object_of(source)
        command = [*build.compile_command(source), "-MD", "-MF", result.with_suffix(".d"), "-c", ROOT / source, "-o", result]
        if is_current(result, command):
            return
        if step(f"build_{result.stem}", command):
            result.with_suffix(".sum").write_text(sum_of(command))
        else:
            bad.add(source)

    def link(program):
        if not bad.intersection(build.sources_of(program)):
            step(f"build_{program}", build.link_command(program))

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        list(pool.map(compile_one, build.sources()))
    # Programs that do not need what has not compiled are linked all the same.
    build.archive().unlink(missing_ok=True)
    if step("build_archive", ["ar", "rcs", build.archive(), *(build.object_of(source) for source in build.shared_sources() if source not in bad)]):
        with ThreadPoolExecutor(max(1, jobs)) as pool:
            list(pool.map(link, build.lists.programs))
    return "; ".join(failed[:3]), begin - steps.left()
