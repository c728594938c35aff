import pytest
from kernelcast.features.cost.occupancy import LIMITS, occupancy
from kernelcast.features.errors import SpecError

# (threads, registers, shared_b): blocks by capability, computed with CUDA 13.0's own cuda_occupancy.h
# (cudaOccMaxActiveBlocksPerMultiprocessor; dynamic shared memory, 1 KiB reserved, opt-in limit).
CAPABILITIES = (80, 86, 89, 90, 100, 120)
CALCULATOR = {
    (128, 32, 0): (16, 12, 12, 16, 16, 12),
    (128, 128, 98304): (1, 1, 1, 2, 2, 1),
    (256, 168, 98304): (1, 1, 1, 1, 1, 1),
    (256, 255, 65536): (1, 1, 1, 1, 1, 1),
    (128, 255, 16384): (2, 2, 2, 2, 2, 2),
    (32, 40, 1000): (32, 16, 24, 32, 32, 24),
    (1024, 64, 8192): (1, 1, 1, 1, 1, 1),
    (1024, 32, 8192): (2, 1, 1, 2, 2, 1),
    (512, 128, 49152): (1, 1, 1, 1, 1, 1),
    (128, 90, 101376): (1, 1, 1, 2, 2, 1),
    (128, 96, 32768): (4, 3, 3, 5, 5, 3),
    (64, 255, 232448): (0, 0, 0, 1, 1, 0),
    (256, 96, 147456): (1, 0, 0, 1, 1, 0),
    (1, 64, 8): (32, 16, 24, 32, 32, 24),
    (576, 32, 4608): (3, 2, 2, 3, 3, 2),
    (288, 40, 0): (5, 5, 5, 5, 5, 5),
    (512, 255, 0): (0, 0, 0, 0, 0, 0),
    (128, 232, 166912): (1, 0, 0, 1, 1, 0),
    (32, 16, 0): (32, 16, 24, 32, 32, 24),
    (96, 57, 3000): (10, 10, 10, 10, 10, 10),
    (784, 40, 6272): (1, 1, 1, 1, 1, 1),
}


@pytest.mark.parametrize("index", range(len(CAPABILITIES)), ids=[f"sm_{c}" for c in CAPABILITIES])
def test_equals_cudas_own_calculator(index):
    for (threads, registers, shared_b), blocks in CALCULATOR.items():
        result = occupancy(CAPABILITIES[index], threads=threads, registers=registers, shared_b=shared_b)
        assert result.blocks == blocks[index], (threads, registers, shared_b)


def test_every_known_capability_is_checked():
    assert tuple(LIMITS) == CAPABILITIES


def test_counts_warps_and_their_share():
    result = occupancy(90, threads=100, registers=32, shared_b=0)
    assert (result.blocks, result.warps, result.share) == (16, 64, 1.0)
    result = occupancy(90, threads=256, registers=128, shared_b=0)
    assert (result.blocks, result.warps, result.share) == (2, 16, 0.25)


def test_a_block_too_large_for_the_device_is_none():
    assert occupancy(90, threads=1056, registers=16, shared_b=0).blocks == 0
    assert occupancy(90, threads=32, registers=16, shared_b=227 * 1024 + 1).blocks == 0


def test_says_which_capabilities_it_knows():
    with pytest.raises(SpecError, match="no limits known for compute capability 35; known: 80, 86, 89, 90"):
        occupancy(35, threads=32, registers=16, shared_b=0)
