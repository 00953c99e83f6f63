"""What the compiler says of every kernel of a build: ptxas' messages, which the build keeps beside each object, and what cuobjdump
reads from the objects themselves."""

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
CUOBJDUMP = ("there is no cuobjdump, which the CUDA toolkit has, and the Python package nvidia-cuda-cuobjdump: "
             "python3 -m venv .venv && .venv/bin/pip install nvidia-cuda-cuobjdump, then --cuobjdump "
             ".venv/lib/python3*/site-packages/nvidia/cu*/bin/cuobjdump")


@dataclass
class Kernel:
    """One instantiation on one architecture."""
    symbol: str
    architecture: int
    registers: int = 0
    stack: int = 0  # bytes of local memory of a thread
    spill_stores: int = 0
    spill_loads: int = 0
    shared: int = 0  # bytes, static
    source: str = ""
    name: str = ""  # demangled, without parameters
    threads: int = 0  # of a block, at most; 0: no launch bounds
    loads: Counter = field(default_factory=Counter)  # from global memory, by bits
    stores: Counter = field(default_factory=Counter)
    local: int = 0  # instructions that touch local memory
    tensor: int = 0  # instructions of the tensor cores


def parse_ptxas(text):
    """The kernels of one compilation's messages. A frame of a function that a kernel calls counts as the kernel's."""
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


def bits(modifiers):
    """Of a load or store of global memory: its width stands among the modifiers unless it is 32."""
    widths = [int(found[1]) for m in modifiers.split(".") if (found := re.fullmatch(r"[US]?(8|16|64|128|256)", m))]
    return widths[-1] if widths else 32


def parse_sass(text):
    """By (architecture, symbol): loads, stores, instructions of local memory and of the tensor cores."""
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
                    (entry.loads if access[1] == "LDG" else entry.stores)[bits(access[2])] += 1
            elif TENSOR.search(line):
                entry.tensor += 1
    return found


def parse_elf(text):
    """By (architecture, symbol): the threads that launch bounds allow."""
    found = {}
    architecture, symbol, wanted = 0, "", False
    for line in text.splitlines():
        if head := re.match(r"arch = sm_(\d+)", line):
            architecture = int(head[1])
        elif head := re.match(r"\.nv\.info\.(\S+)", line):
            symbol = head[1]
        elif "EIATTR_MAX_THREADS" in line:
            wanted = True
        elif wanted and (value := re.search(r"Value:\s+0x([0-9a-f]+) 0x([0-9a-f]+) 0x([0-9a-f]+)", line)):
            x, y, z = (int(part, 16) for part in value.groups())
            found[architecture, symbol] = x * y * z
            wanted = False
    return found


def demangle(symbols):
    run = subprocess.run(["c++filt", *symbols], capture_output=True, text=True, check=True)
    return dict(zip(symbols, run.stdout.splitlines()))


def without_parameters(name):
    """"void a::(anonymous namespace)::f<T>(int)": "a::f<T>"."""
    name = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    depth = 0
    for at, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            return name[:at]
    return name


def objects_of(build, sources):
    """The object of each kernels/NAME.cu in a build folder, with its messages."""
    folder = Path(build) / "CMakeFiles" / "maestro_kernels_nvcc.dir" / "kernels"
    objects = {}
    for source in sorted(Path(sources).glob("*.cu")):
        made = folder / f"{source.name}.o"
        if not made.exists() or not Path(f"{made}.ptxas").exists():
            raise SystemExit(f"{made} and its .ptxas are not there: build maestro_kernels_nvcc in {build} first, with MAESTRO_CUDA=ON")
        objects[source.stem] = made
    return objects


def find_cuobjdump(given):
    path = shutil.which(given or "cuobjdump")
    if path is None:
        raise SystemExit(CUOBJDUMP)
    return path


def read_build(build, sources, cuobjdump=None):
    """All kernels of a build; what only the objects say stays 0 without `cuobjdump`."""
    kernels = []
    for source, made in objects_of(build, sources).items():
        said = parse_ptxas(Path(f"{made}.ptxas").read_text())
        if not said:
            raise SystemExit(f"{made}.ptxas names no kernel: build {made} again (without -Xptxas=-v ptxas says nothing)")
        if cuobjdump:
            def dump(option):
                return subprocess.run([cuobjdump, option, made], capture_output=True, text=True, check=True).stdout
            code, bounds = parse_sass(dump("-sass")), parse_elf(dump("-elf"))
            for kernel in said:
                key = kernel.architecture, kernel.symbol
                seen = code[key]
                kernel.loads, kernel.stores, kernel.local, kernel.tensor = seen.loads, seen.stores, seen.local, seen.tensor
                kernel.threads = bounds.get(key, 0)
        names = demangle(sorted({kernel.symbol for kernel in said}))
        for kernel in said:
            kernel.source, kernel.name = source, without_parameters(names[kernel.symbol])
        kernels += said
    return kernels
