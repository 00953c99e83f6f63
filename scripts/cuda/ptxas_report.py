"""Reads resource usage of all kernels of a build: the ptxas report, which the build keeps beside each object, and the output of
cuobjdump for the objects."""

import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ENTRY = re.compile(r"Compiling entry function '(\S+)' for 'sm_(\d+)a?f?'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
CODE = re.compile(r"^\s*(?:code for|\.target)\s+sm_(\d+)|^\s*Function : (\S+)")
MEMORY = re.compile(r"\b(LDG|STG|LDL|STL)((?:\.[A-Za-z0-9_]+)*)")
TENSOR = re.compile(r"\b(HMMA|IMMA|DMMA|HGMMA|IGMMA|QGMMA|UTCHMMA|UTCQMMA|UTCOMMA|UTCIMMA|UTCMMA)\b")
CUOBJDUMP = ("cuobjdump was not found. The CUDA toolkit and the Python package nvidia-cuda-cuobjdump contain it: "
             "python3 -m venv .venv && .venv/bin/pip install nvidia-cuda-cuobjdump, then --cuobjdump "
             ".venv/lib/python3*/site-packages/nvidia/cu*/bin/cuobjdump")


@dataclass
class Kernel:
    """One instantiation of a kernel on one architecture."""
    symbol: str
    architecture: int
    registers: int = 0
    stack: int = 0  # bytes of local memory per thread
    spill_stores: int = 0
    spill_loads: int = 0
    shared: int = 0  # bytes of static shared memory
    source: str = ""
    name: str = ""  # demangled, without parameters
    threads: int = 0  # largest block size by launch bounds; 0: no launch bounds
    loads: Counter = field(default_factory=Counter)  # loads from global memory, by width in access_bits
    stores: Counter = field(default_factory=Counter)
    local: int = 0  # instructions that access local memory
    tensor: int = 0  # tensor core instructions


def parse_ptxas(text):
    """Returns the kernels in the ptxas output of one compilation. Stack frames of called functions count for the kernel."""
    kernels = []
    for line in text.splitlines():
        if found := ENTRY.search(line):
            kernels.append(Kernel(found[1], int(found[2])))
        elif not kernels:
            continue
        elif found := FRAME.search(line):
            kernel = kernels[-1]
            stack, stores, loads = map(int, found.groups())
            kernel.stack = max(kernel.stack, stack)
            kernel.spill_stores += stores
            kernel.spill_loads += loads
        elif found := USED.search(line):
            kernels[-1].registers = int(found[1])
            kernels[-1].shared = int(shared[1]) if (shared := SHARED.search(line)) else 0
    return kernels


def access_bits(modifiers):
    """The width in bits of a load or store of global memory. It is among the modifiers unless it is 32."""
    widths = [int(found[1]) for m in modifiers.split(".") if (found := re.fullmatch(r"[US]?(8|16|64|128|256)", m))]
    return widths[-1] if widths else 32


def parse_sass(text):
    """Returns, by (architecture, symbol), the counts of loads, stores, local-memory and tensor-core instructions."""
    found = {}
    architecture, entry = 0, None
    for line in text.splitlines():
        if head := CODE.match(line):
            architecture = int(head[1] or architecture)
            if head[2]:
                entry = found.setdefault((architecture, head[2]), Kernel(head[2], architecture))
        elif entry is not None and ";" in line:
            if access := MEMORY.search(line):
                if access[1] in ("LDL", "STL"):
                    entry.local += 1
                else:
                    (entry.loads if access[1] == "LDG" else entry.stores)[access_bits(access[2])] += 1
            elif TENSOR.search(line):
                entry.tensor += 1
    return found


def parse_elf(text):
    """Returns, by (architecture, symbol), the largest block size that launch bounds allow."""
    found = {}
    architecture, symbol, value_follows = 0, "", False
    for line in text.splitlines():
        if head := re.match(r"arch = sm_(\d+)", line):
            architecture = int(head[1])
        elif head := re.match(r"\.nv\.info\.(\S+)", line):
            symbol = head[1]
        elif "EIATTR_MAX_THREADS" in line:
            value_follows = True
        elif value_follows and (value := re.search(r"Value:\s+0x([0-9a-f]+) 0x([0-9a-f]+) 0x([0-9a-f]+)", line)):
            x, y, z = (int(part, 16) for part in value.groups())
            found[architecture, symbol] = x * y * z
            value_follows = False
    return found


def demangle(symbols):
    run = subprocess.run(["c++filt", *symbols], capture_output=True, text=True, check=True)
    return dict(zip(symbols, run.stdout.splitlines()))


def without_parameters(name):
    """Turns "void a::(anonymous namespace)::f<T>(int)" into "a::f<T>"."""
    name = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    depth = 0
    for at, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            return name[:at]
    return name


def objects_of(build, sources):
    """Returns, by NAME, the object of each kernels/NAME.cu in a build folder; its ptxas report must exist. NAME of a second form is
    nvcc/NAME."""
    folder = Path(build) / "CMakeFiles" / "maestro_kernels_nvcc.dir" / "kernels"
    objects = {}
    for source in sorted([*Path(sources).glob("*.cu"), *Path(sources).glob("nvcc/*.cu")]):
        name = source.relative_to(sources)
        object_file = folder / f"{name}.o"
        if not object_file.exists() or not Path(f"{object_file}.ptxas").exists():
            raise SystemExit(f"{object_file} or its .ptxas does not exist: build maestro_kernels_nvcc in {build} first, with MAESTRO_CUDA=ON")
        objects[str(name.with_suffix(""))] = object_file
    return objects


def find_cuobjdump(requested):
    path = shutil.which(requested or "cuobjdump")
    if path is None:
        raise SystemExit(CUOBJDUMP)
    return path


def read_build(build, sources, cuobjdump=None):
    """Returns all kernels of a build. Without `cuobjdump`, what only the objects contain stays 0."""
    kernels = []
    for source, object_file in objects_of(build, sources).items():
        kernels_of_source = parse_ptxas(Path(f"{object_file}.ptxas").read_text())
        if not kernels_of_source:
            raise SystemExit(f"{object_file}.ptxas names no kernel: build {object_file} again (without -Xptxas=-v ptxas reports nothing)")
        if cuobjdump:
            def dump(option):
                return subprocess.run([cuobjdump, option, object_file], capture_output=True, text=True, check=True).stdout
            code, bounds = parse_sass(dump("-sass")), parse_elf(dump("-elf"))
            for kernel in kernels_of_source:
                key = kernel.architecture, kernel.symbol
                code_info = code[key]
                kernel.loads, kernel.stores, kernel.local, kernel.tensor = code_info.loads, code_info.stores, code_info.local, code_info.tensor
                kernel.threads = bounds.get(key, 0)
        names = demangle(sorted({kernel.symbol for kernel in kernels_of_source}))
        for kernel in kernels_of_source:
            kernel.source, kernel.name = source, without_parameters(names[kernel.symbol])
        kernels += [kernel for kernel in kernels_of_source if not kernel.name.startswith("cub::")]  # CUDA's library
    return kernels
