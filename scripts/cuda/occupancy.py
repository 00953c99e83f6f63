"""Occupancy: how many blocks of a kernel are resident on an SM. Follows NVIDIA's occupancy calculator, with the limits of the table
"Technical Specifications per Compute Capability" in the CUDA C++ Programming Guide."""

from dataclasses import dataclass

WARP = 32
REGISTER_UNIT = 256  # registers are allocated to a warp in multiples of this
WARP_UNIT = 4        # and to this many warps at a time, one per quarter of the SM
SHARED_UNIT = 128    # bytes
RESERVED_SHARED = 1024  # bytes that the system reserves in each block


@dataclass(frozen=True)
class Architecture:
    warps: int
    blocks: int
    registers: int
    shared: int  # bytes


ARCHITECTURES = {80: Architecture(64, 32, 65536, 164 << 10),
                 90: Architecture(64, 32, 65536, 228 << 10),
                 100: Architecture(64, 32, 65536, 228 << 10)}


def round_up(value, unit):
    return -(-value // unit) * unit


def blocks(architecture, threads, registers, shared=0):
    """Resident blocks of `threads` threads with `registers` registers each and `shared` bytes of static and dynamic shared memory."""
    limits = ARCHITECTURES[architecture]
    warps = round_up(threads, WARP) // WARP
    by_registers = limits.blocks
    if registers > 0:
        warps_by_registers = limits.registers // round_up(registers * WARP, REGISTER_UNIT) // WARP_UNIT * WARP_UNIT
        by_registers = warps_by_registers // warps
    by_shared = limits.shared // round_up(shared + RESERVED_SHARED, SHARED_UNIT)
    return min(limits.blocks, limits.warps // warps, by_registers, by_shared)


def occupancy(architecture, threads, registers, shared=0):
    """The fraction of an SM's warps that can be resident."""
    warps = round_up(threads, WARP) // WARP
    return blocks(architecture, threads, registers, shared) * warps / ARCHITECTURES[architecture].warps


def shared_room(architecture, count):
    """Bytes of shared memory that each block may use with `count` resident blocks."""
    return ARCHITECTURES[architecture].shared // count // SHARED_UNIT * SHARED_UNIT - RESERVED_SHARED
