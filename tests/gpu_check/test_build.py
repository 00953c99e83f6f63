"""The build without CMake compiles what CMake compiles."""

import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/gpu_check"))
import machine  # noqa: E402
import plain_build  # noqa: E402


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
        if path.parts[0] == "src":
            of_source = definitions_of(map(str, build.compile_command(path)))
            missing = {word for word in found - of_source if not word.startswith("FMT_")}
            assert not missing, (path, missing)
    # Files that only one kind of build compiles
    assert (ROOT / "src/backend/no_cuda.cpp").is_file() and pathlib.Path("src/backend/no_cuda.cpp") not in by_cmake


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
