"""How many blocks of a kernel an SM holds at once: the closed form of NVIDIA's occupancy calculator, with the limits of the CUDA C++
Programming Guide's table "Technical Specifications per Compute Capability"."""

from dataclasses import dataclass

WARP = 32
REGISTER_UNIT = 256  # registers are given to a warp in such pieces
WARP_UNIT = 4        # and to this many warps at a time, one for each quarter of the SM
SHARED_UNIT = 128    # bytes
RESERVED_SHARED = 1024  # bytes of each block, for the system


@dataclass(frozen=True)
class Architecture:
    warps: int
    blocks: int
    registers: int
    shared: int  # bytes


ARCHITECTURES = {80: Architecture(64, 32, 65536, 164 << 10),
                 90: Architecture(64, 32, 65536, 228 << 10),
                 100: Architecture(64, 32, 65536, 228 << 10)}


def up(value, unit):
    return -(-value // unit) * unit


def blocks(architecture, threads, registers, shared=0):
    """Of so many threads, with so many registers each and so many bytes of shared memory, static and dynamic."""
    limits = ARCHITECTURES[architecture]
    warps = up(threads, WARP) // WARP
    by_registers = limits.blocks
    if registers > 0:
        room = limits.registers // up(registers * WARP, REGISTER_UNIT) // WARP_UNIT * WARP_UNIT
        by_registers = room // warps
    by_shared = limits.shared // up(shared + RESERVED_SHARED, SHARED_UNIT)
    return min(limits.blocks, limits.warps // warps, by_registers, by_shared)


def occupancy(architecture, threads, registers, shared=0):
    """The share of an SM's warps that can be resident."""
    warps = up(threads, WARP) // WARP
    return blocks(architecture, threads, registers, shared) * warps / ARCHITECTURES[architecture].warps


def shared_room(architecture, count):
    """Bytes that each of `count` blocks of an SM may take."""
    return ARCHITECTURES[architecture].shared // count // SHARED_UNIT * SHARED_UNIT - RESERVED_SHARED
