#!/usr/bin/env python3
"""Writes the table "kernels" of docs/cuda.md: registers, spills, local and shared memory, 16-byte accesses, tensor-core instructions and
occupancy of every kernel.

  cmake --preset cpu-release -B build/kernels -DMAESTRO_CUDA=ON && cmake --build build/kernels --target maestro_kernels_nvcc
  scripts/cuda/kernel_table.py build/kernels            # writes the table, of architectures 80, 90 and 100; needs cuobjdump, nvdisasm
  scripts/cuda/kernel_table.py build/kernels --check    # for the architectures that were built: fails if a kernel spills or uses
                                                        # local memory, or if the table says otherwise"""

import argparse
import re
import sys
from collections import defaultdict
from pathlib import Path

import ptxas_report
import document
import occupancy

ROOT = Path(__file__).resolve().parents[2]
HEADER = ["kernel", "of", "threads", "registers", "spills, local", "shared", "16 bytes read, written", "tensor", "occupancy", "room KiB"]


def row_name(kernel):
    """The row of an instantiation: its file and function, and for kernels with a function object the name of that."""
    name = kernel.name.replace("maestro::kernels::", "").removeprefix("nvcc::")
    function = re.match(r"\w+", name)[0]
    if body := re.match(r"(?:for_each|sum_chunks)<[^,]+, (\w+)", name):
        function = f"{body[1]} by {function}"
    return f"{kernel.source}: {function}"


def rows_of(kernels):
    rows = defaultdict(list)
    for kernel in kernels:
        rows[row_name(kernel)].append(kernel)
    return dict(sorted(rows.items()))


def local_bytes(kernel):
    return max(kernel.stack, kernel.spill_stores, kernel.spill_loads)


def by_architecture(kernels, describe):
    """Joins describe(kernels) of all architectures; one value where all are equal."""
    groups = defaultdict(list)
    for kernel in kernels:
        groups[kernel.architecture].append(kernel)
    values = [describe(group) for _, group in sorted(groups.items())]
    return values[0] if len(set(values)) == 1 else " / ".join(values)


def span(values):
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}-{high}"


def is_wide(accesses):
    return any(count > 0 and width >= 128 for width, count in accesses.items())


def share_of_warps(kernel):
    return occupancy.occupancy(kernel.architecture, kernel.threads, kernel.registers, kernel.shared)


def room_kib(kernel):
    """KiB of shared memory, static and dynamic, that a block may use without lowering the occupancy."""
    count = occupancy.blocks(kernel.architecture, kernel.threads, kernel.registers, kernel.shared)
    return occupancy.shared_room(kernel.architecture, count) / 1024


def row_of(name, kernels):
    instantiations = max(len([k for k in kernels if k.architecture == a]) for a in {k.architecture for k in kernels})
    bounded = all(k.threads > 0 for k in kernels)

    def wide_accesses(group):
        return f"{sum(is_wide(k.loads) for k in group)}, {sum(is_wide(k.stores) for k in group)}"
    return [name, str(instantiations), span([k.threads for k in kernels]) if bounded else "any",
            by_architecture(kernels, lambda g: span([k.registers for k in g])),
            str(max(map(local_bytes, kernels))), span([k.shared for k in kernels]),
            by_architecture(kernels, wide_accesses), by_architecture(kernels, lambda g: str(sum(k.tensor > 0 for k in g))),
            by_architecture(kernels, lambda g: span([round(100 * share_of_warps(k)) for k in g]) + "%") if bounded else "",
            by_architecture(kernels, lambda g: f"{min(map(room_kib, g)):.1f}") if bounded else ""]


def line(cells):
    return "| " + " | ".join(cells) + " |\n"


def table_of(kernels):
    text = "\n" + line(HEADER) + "|" + "---|" * len(HEADER) + "\n"
    return text + "".join(line(row_of(name, row)) for name, row in rows_of(kernels).items()) + "\n"


def read_table(text):
    """Returns the bytes of spills and local memory by row."""
    rows = {}
    for cells in ([c.strip() for c in found.strip().strip("|").split("|")] for found in text.splitlines() if found.startswith("|")):
        if len(cells) == len(HEADER) and cells != HEADER and not cells[0].startswith("---"):
            rows[cells[0]] = cells[HEADER.index("spills, local")]
    return rows


def errors(kernels, table):
    """Yields the errors that --check finds in a build and the table, one line each."""
    for kernel in kernels:
        if local_bytes(kernel) > 0:
            yield (f"kernels/{kernel.source}.cu: {kernel.name} has {kernel.stack} bytes of local memory and {kernel.spill_stores} + "
                   f"{kernel.spill_loads} bytes of spills on {kernel.architecture}: use fewer registers, and no indexed local arrays")
    expected, rows = read_table(table), rows_of(kernels)
    for name in sorted(set(expected) ^ set(rows)):
        yield f"{name}: {'the table has it, but there is no such kernel' if name in expected else 'missing in the table'}: regenerate the table"
    for name in sorted(set(expected) & set(rows)):
        worst = str(max(map(local_bytes, rows[name])))
        if worst != expected[name]:
            yield f"{name}: {worst} bytes of spills or local memory, {expected[name]} in the table: regenerate the table"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", help="a build folder with MAESTRO_CUDA=ON")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--document", type=Path, default=ROOT / "docs" / "cuda.md")
    parser.add_argument("--kernels", type=Path, default=ROOT / "kernels", help="the folder of the kernel sources")
    parser.add_argument("--cuobjdump", help="its path, if it is not on PATH")
    options = parser.parse_args(arguments)
    text = options.document.read_text()
    if options.check:
        kernels = ptxas_report.read_build(options.build, options.kernels)
        found = list(errors(kernels, document.read_between(text, "kernels")))
        print("\n".join(found) or f"{len(kernels)} kernels, none of which spills or uses local memory")
        return 1 if found else 0
    kernels = ptxas_report.read_build(options.build, options.kernels, ptxas_report.find_cuobjdump(options.cuobjdump))
    missing = set(occupancy.ARCHITECTURES) - {k.architecture for k in kernels}
    if missing:
        raise SystemExit(f"{options.build} was not built for {', '.join(map(str, sorted(missing)))}: configure it without CMAKE_CUDA_ARCHITECTURES")
    options.document.write_text(document.write_between(text, "kernels", table_of(kernels)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
