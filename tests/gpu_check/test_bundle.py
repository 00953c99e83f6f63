"""gpu_check.sh --bundle: what it packs is found where it is unpacked."""

import pathlib
import subprocess
import sys
import tarfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/gpu_check"))
import bundle  # noqa: E402

ASK = """
import pathlib, plain_build
toolkit = plain_build.find_toolkit({})
assert not isinstance(toolkit, str), toolkit
print(plain_build.find_cudnn(toolkit).includes[:1], plain_build.find_nccl(toolkit), sep="\\n")
"""


@pytest.fixture
def packages(monkeypatch):
    """Packages that are installed instead of those of the registry."""
    installed = []

    def install(folder, names):
        installed.extend(names)
        (folder / "cudnn").mkdir(exist_ok=True)
        (folder / "cudnn/module.py").write_text("")
        (folder / "include").mkdir(exist_ok=True)
        (folder / "include/cudnn_frontend.h").write_text("// front end\n")

    monkeypatch.setattr(bundle, "install", install)
    return installed


def test_a_bundle_has_what_a_build_needs(packages, tmp_path):
    bundle.make(tmp_path / "bundle.tar.gz")
    assert [name.split("==")[0] for name in packages] == ["nvidia-cudnn-frontend"]
    with tarfile.open(tmp_path / "bundle.tar.gz") as archive:
        archive.extractall(tmp_path)
    unpacked = tmp_path / bundle.FOLDER
    assert (unpacked / "scripts/gpu_check.sh").stat().st_mode & 0o100 and (unpacked / "inputs/layouts.toml").is_file()
    assert not (unpacked / bundle.PLACE / "cudnn").exists() and not (unpacked / ".git").exists()
    for line in (ROOT / "cmake/gpu_check_sources.txt").read_text().splitlines():
        if line.startswith("program"):
            for glob in line.split()[2:]:
                assert {path.relative_to(ROOT) for path in ROOT.glob(glob)} == {path.relative_to(unpacked) for path in unpacked.glob(glob)}
    assert not list(tmp_path.glob("*.part"))
    done = subprocess.run([sys.executable, "-c", ASK], cwd=unpacked / "scripts/gpu_check", capture_output=True, text=True, timeout=60)
    if "nvcc was not found" in done.stderr:
        pytest.skip("no nvcc")
    assert str(unpacked / bundle.PLACE / "include") in done.stdout.splitlines()[0], done.stdout + done.stderr
    # CMake looks in the same folder.
    assert f"${{CMAKE_SOURCE_DIR}}/{bundle.PLACE}" in (ROOT / "cmake/cudnn.cmake").read_text()


def test_libraries_are_for_one_version_of_cuda(packages, tmp_path):
    bundle.make(tmp_path / "bundle.tar.gz", 12)
    assert packages[1:] == ["nvidia-cudnn-cu12", "nvidia-nccl-cu12"]


def test_without_a_network(monkeypatch, tmp_path):
    monkeypatch.setattr(bundle.sys, "executable", "/bin/false")
    with pytest.raises(bundle.Failure, match="pip cannot install nvidia-cudnn-frontend"):
        bundle.make(tmp_path / "bundle.tar.gz")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written(packages, tmp_path):
    with pytest.raises(bundle.Failure, match="cannot write"):
        bundle.make(tmp_path / "missing" / "bundle.tar.gz")


def test_a_copy_without_git(packages, tmp_path, monkeypatch):
    (tmp_path / "build").mkdir()
    (tmp_path / "build/object").write_text("")
    (tmp_path / "CMakeLists.txt").write_text("")
    monkeypatch.setattr(bundle, "ROOT", tmp_path)
    assert bundle.repository_files() == ["CMakeLists.txt"]
