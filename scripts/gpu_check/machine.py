"""Describes this machine."""

import ctypes
import os
import pathlib
import platform
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass


@dataclass
class Gpu:
    count: int
    why_none: str = ""
    architecture: str = ""  # of the first GPU, in CMake's notation


def find_gpu():
    """Queries the driver directly, so that neither a build nor nvidia-smi is needed."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Gpu(0, "no NVIDIA driver (libcuda.so.1 was not found)")
    status = driver.cuInit(0)
    count = ctypes.c_int(0)
    if status == 0:
        status = driver.cuDeviceGetCount(ctypes.byref(count))
    if status != 0:
        return Gpu(0, f"the driver finds no GPU (error {status} of cuInit)")
    if count.value == 0:
        return Gpu(0, "the driver shows no GPU to this process (CUDA_VISIBLE_DEVICES?)")
    numbers = [ctypes.c_int(0), ctypes.c_int(0)]
    for number, attribute in zip(numbers, (75, 76)):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
        driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, 0)
    return Gpu(count.value, architecture=f"{numbers[0].value}{numbers[1].value}")


def first_line(*command):
    """Returns the first line of a program's output; empty if the program is missing or fails."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return lines[0] if lines and done.returncode == 0 else ""


def nvcc_version():
    if shutil.which("nvcc") is None:
        return ""
    done = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return next((line.strip() for line in done.stdout.splitlines() if "release" in line), "")


def wheels_that_fill_gaps():
    """Returns the site-packages folder if its wheels have CUDA headers that the system lacks, else None."""
    nvcc = shutil.which("nvcc")
    system = [pathlib.Path("/usr/include"), *pathlib.Path("/usr/include").glob("*-linux-gnu")]
    if nvcc:
        system.append(pathlib.Path(nvcc).resolve().parents[1] / "include")
    missing = [name for name in ("cuda_runtime.h", "cublasLt.h", "cudnn.h", "nccl.h") if not any((folder / name).exists() for folder in system)]
    folder = pathlib.Path(sysconfig.get_paths()["purelib"])
    found = any(any(folder.glob(f"nvidia/*/include/{name}")) for name in missing)
    return folder if found else None


def describe():
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "compiler": first_line("c++", "--version"),
        "cmake": first_line("cmake", "--version"),
        "nvcc": nvcc_version(),
        "driver": first_line("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "compute_sanitizer": first_line("compute-sanitizer", "--version"),
    }
