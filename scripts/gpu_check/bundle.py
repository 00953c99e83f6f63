"""gpu_check.sh --bundle FILE: packs the repository's files and what a GPU node without a network may lack: the headers of cuDNN's front
end, and with --bundle-libraries the libraries cuDNN and NCCL. The builds find them in build/cudnn/python."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLACE = "build/cudnn/python"  # where cmake/cudnn.cmake, cmake/cuda.cmake and plain_build.py look
FOLDER = "maestro-gpu-check"  # in the archive
NOT_NEEDED = {".git", "build", "runs", "data", "__pycache__"}


class Failure(Exception):
    pass


def make(file, cuda_major=None):
    """Writes the archive. Raises Failure."""
    file = pathlib.Path(file).resolve()
    with tempfile.TemporaryDirectory() as folder:
        packages = pathlib.Path(folder)
        install(packages, [f"nvidia-cudnn-frontend=={front_end_version()}"])
        if not (packages / "include/cudnn_frontend.h").is_file():
            raise Failure("the package of cuDNN's front end has no include/cudnn_frontend.h")
        if cuda_major:
            install(packages, [f"nvidia-cudnn-cu{cuda_major}", f"nvidia-nccl-cu{cuda_major}"])
        shutil.rmtree(packages / "cudnn", ignore_errors=True)  # Python modules
        part = file.with_name(file.name + ".part")
        try:
            with tarfile.open(part, "w:gz", compresslevel=6) as archive:
                for path in repository_files():
                    archive.add(ROOT / path, f"{FOLDER}/{path}", recursive=False)
                archive.add(packages, f"{FOLDER}/{PLACE}")
            os.replace(part, file)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise Failure(f"cannot write {file}: {error}") from error
    print(f"{file}: {file.stat().st_size >> 20} MiB. On the machine with a GPU: tar xf {file.name} && {FOLDER}/scripts/gpu_check.sh")


def front_end_version():
    """That of the tests."""
    return re.search(r"nvidia-cudnn-frontend==([\d.]+)", (ROOT / "scripts/test.sh").read_text()).group(1)


def repository_files():
    """Files that git tracks, and new ones; all where this is no checkout."""
    try:
        done = subprocess.run(["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                              capture_output=True, text=True)
        paths = [path for path in done.stdout.split("\0") if path] if done.returncode == 0 else []
    except OSError:
        paths = []
    if not paths:
        paths = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file() and not NOT_NEEDED & set(path.relative_to(ROOT).parts)]
    return sorted(path for path in paths if os.path.lexists(ROOT / path))


def install(folder, packages):
    """Installs packages into a folder, without those that they depend on."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check", "--root-user-action=ignore", "--target", folder,
               *packages]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise Failure(f"pip cannot install {', '.join(packages)}: {lines[-1][:300] if lines else f'exit code {done.returncode}'}")
