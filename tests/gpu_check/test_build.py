"""The build without CMake compiles what CMake compiles."""

import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import types

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/gpu_check"))
import checks  # noqa: E402
import plain_build  # noqa: E402
import steps  # noqa: E402


@pytest.fixture
def toolkit(monkeypatch):
    monkeypatch.setenv("PATH", os.environ["PATH"] + os.pathsep + "/usr/local/cuda/bin")
    found = plain_build.find_toolkit({})
    if isinstance(found, str):
        pytest.skip(found)
    return found


def definitions_of(words):
    """-D words, with paths without links."""
    found = {word[2:] for word in words if word.startswith("-D")} - {"NDEBUG"}
    return {f"{name}={pathlib.Path(value[1:-1]).resolve()}" if value.startswith('"/') else f"{name}={value}" for name, _, value in (word.partition("=") for word in found)}


def files_of(folder):
    """The sources of CMake's build: {path: definitions}. Sources that are compiled as one are taken apart."""
    files = {}
    for entry in json.loads((folder / "compile_commands.json").read_text()):
        found = definitions_of(shlex.split(entry["command"]))
        path = pathlib.Path(entry["file"])
        parts = [path]
        if folder in path.parents:  # a source that includes others
            parts = [pathlib.Path(line.split('"')[1]) for line in path.read_text().splitlines() if line.startswith("#include")]
        files.update({part.resolve().relative_to(ROOT): found for part in parts})
    return files


def test_the_same_sources_with_the_same_definitions(toolkit, tmp_path):
    done = subprocess.run(["cmake", "-S", ROOT, "-B", tmp_path, *(["-G", "Ninja"] if shutil.which("ninja") else []), "-DMAESTRO_PARTS=gpu-check",
                           "-DCMAKE_CUDA_ARCHITECTURES=90"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    by_cmake = files_of(tmp_path)
    build = plain_build.PlainBuild(toolkit, tmp_path / "plain", "90")
    assert {path for path in by_cmake if path.suffix != ".cu"} == {path for path in build.sources() if path.suffix != ".cu"}
    assert {path for path in by_cmake if path.suffix == ".cu"} == set(plain_build.kernel_sources()) == {path for path in build.sources() if path.suffix == ".cu"}
    for program in build.lists.programs:
        in_folder = [entry["file"] for entry in json.loads((tmp_path / "compile_commands.json").read_text())
                     if f"CMakeFiles/{program}.dir/" in entry["command"]]
        assert {pathlib.Path(file).resolve().relative_to(ROOT) for file in in_folder} == set(build.sources_of(program)), program
    for path, found in by_cmake.items():
        if path.parts[0] in ("src", "kernels"):
            of_source = definitions_of(map(str, build.compile_command(path)))
            missing = {word for word in found - of_source if not word.startswith(("FMT_", "MAESTRO_VERSION"))}
            assert not missing, (path, missing)
    # Files that only one kind of build compiles
    assert (ROOT / "src/backend/no_cuda.cpp").is_file() and pathlib.Path("src/backend/no_cuda.cpp") not in by_cmake


@pytest.mark.parametrize("version, words", [("11050", "CUDA 11.5 of "), (None, "there is no cuda_runtime_api.h"), ("12040", "there is no cublasLt.h")])
def test_an_unsuitable_toolkit(monkeypatch, tmp_path, version, words):
    monkeypatch.setattr(plain_build, "system_includes", lambda: [])
    monkeypatch.setattr(plain_build, "package_folders", lambda _: [])
    (tmp_path / "bin").mkdir()
    (tmp_path / "include").mkdir()
    (tmp_path / "bin/nvcc").write_text("")
    (tmp_path / "bin/nvcc").chmod(0o755)
    if version:
        (tmp_path / "include/cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {version}\n")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert words in plain_build.find_toolkit({})


def test_libraries_that_are_missing(toolkit):
    lists = plain_build.read_lists()
    with_all, without = plain_build.library_sources(lists, True, True), plain_build.library_sources(lists, False, False)
    names = {path.name for path in without}
    assert "no_cudnn.cpp" in names and not any(name.startswith("cudnn_") for name in names) and "cudnn_graph.cpp" in {path.name for path in with_all}
    assert not any(path.name == "no_cudnn.cpp" or path.name == "no_nccl.cpp" for path in with_all)


def test_objects_are_compiled_again_where_something_changed(tmp_path):
    source, result = tmp_path / "a.cpp", tmp_path / "a.o"
    source.write_text("")
    command = ["g++", source]
    for name, text in (("a.o", ""), ("a.d", f"a.o: {source} \\\n {tmp_path}/a.cpp\n"), ("a.sum", plain_build.sum_of(command))):
        (tmp_path / name).write_text(text)
    os.utime(source, (1, 1))
    assert plain_build.is_current(result, command)
    assert not plain_build.is_current(result, [*command, "-O3"])
    os.utime(source, None)
    os.utime(result, (2, 2))
    assert not plain_build.is_current(result, command)


class FakeBuild(plain_build.PlainBuild):
    """Two programs, of which the second does not compile."""

    def __init__(self, folder):
        self.folder, self.lists = folder, plain_build.Lists(programs={"good": [], "bad": []})

    def sources_of(self, program):
        return [pathlib.Path(program)]

    def shared_sources(self):
        return []

    def sources(self):
        return [pathlib.Path("good"), pathlib.Path("bad")]

    def make_include_folder(self):
        pass

    def compile_command(self, source):
        return ["true" if source.name == "good" else "false"]

    def link_command(self, program):
        return ["touch", self.folder / program]


def test_what_compiles_is_linked(tmp_path):
    log = steps.Steps(tmp_path / "log.txt", tmp_path / "steps", 60)
    failed, _ = plain_build.run(log, FakeBuild(tmp_path), 2, 60)
    assert failed.startswith("bad: ") and (tmp_path / "good").exists() and not (tmp_path / "bad").exists()


@pytest.mark.parametrize("version, expected", [("cmake version 3.22.1", "nvcc and g++"), ("cmake version 3.25.0", "cmake"), ("", "nvcc and g++")])
def test_the_way_of_building(monkeypatch, tmp_path, version, expected):
    monkeypatch.setattr(checks.machine, "first_line", lambda *_: version)
    monkeypatch.setattr(checks, "build_by_cmake", lambda *_: ("failed", "", 0.0, {"way": "cmake"}))
    monkeypatch.setattr(checks, "build_plainly", lambda *_: ("failed", "", 0.0, {"way": "nvcc and g++"}))
    found = {}
    report = types.SimpleNamespace(add=lambda *_, **more: found.update(more))
    assert checks.build(None, report, types.SimpleNamespace(build=tmp_path, build_only=True, without_cmake=False), "90") is None
    assert found == {"way": expected}


def test_why_a_build_is_without_libraries():
    text = "-- cuDNN: no cudnn_frontend.h or no libcudnn.so.9 (MAESTRO_CUDNN_ROOT): attention\n-- NCCL was not found (nccl.h)\n"
    assert checks.libraries_of(text) == {"without_cudnn": "no cudnn_frontend.h or no libcudnn.so.9", "without_nccl": "nccl.h or libnccl was not found"}
    old = "-- cuDNN: 9.1.0 in /usr/include is older than 9.18: attention by Maestro's kernels alone\n"
    assert checks.libraries_of(old) == {"without_cudnn": "9.1.0 in /usr/include is older than 9.18"}
    assert checks.libraries_of("-- cuDNN: 9.19.0, front end in /usr/include\n") == {}
