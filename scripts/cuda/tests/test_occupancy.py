import pytest
from occupancy import ARCHITECTURES, blocks, occupancy, shared_room


@pytest.mark.parametrize("threads, expected", [(128, 0.75), (320, 0.625)])
def test_the_example_of_nvidias_best_practices_guide(threads, expected):
    """37 registers a thread, 64 warps and 65536 registers an SM: "12 resident blocks of 128 threads", "63% occupancy" of 320."""
    for architecture in ARCHITECTURES:
        assert occupancy(architecture, threads, 37) == expected
    assert blocks(90, 128, 37) == 12


@pytest.mark.parametrize("registers, warps", [(32, 64), (33, 48), (40, 48), (41, 40), (48, 40), (64, 32), (65, 28), (128, 16), (168, 12),
                                              (255, 8)])
def test_registers_are_allocated_to_four_warps_in_multiples_of_256(registers, warps):
    assert blocks(90, 128, registers) * 4 == warps


def test_small_blocks_are_limited_by_their_number():
    assert occupancy(90, 32, 16) == 0.5
    assert occupancy(90, 64, 16) == 1


def test_large_blocks_are_limited_by_their_warps():
    assert blocks(90, 1024, 16) == 2
    assert occupancy(90, 768, 16) == 0.75


def test_a_partial_warp_counts_as_a_warp():
    assert blocks(90, 100, 16) == blocks(90, 128, 16)


@pytest.mark.parametrize("architecture, largest", [(80, 163 << 10), (90, 227 << 10), (100, 227 << 10)])
def test_the_largest_block_of_shared_memory_fits_once(architecture, largest):
    """The system reserves 1 KiB of each block, by which the guide's two sizes differ."""
    assert blocks(architecture, 128, 32, largest) == 1
    assert blocks(architecture, 128, 32, largest + 1) == 0


def test_shared_room_is_the_limit():
    for architecture in ARCHITECTURES:
        for count in range(1, 9):
            room = shared_room(architecture, count)
            assert blocks(architecture, 256, 32, room) == count
            assert blocks(architecture, 256, 32, room + 1) < count
