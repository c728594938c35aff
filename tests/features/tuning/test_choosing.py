"""What is chosen of a grid is the best of every group first, and the spaces of IREE's kinds hold what they promise."""

from __future__ import annotations

import numpy as np
import pytest
from kernelcast.features.tuning.kind import Candidates, Task, get_kind, near, spread

DEVICE = "amd-epyc-9005-vm-2c"


def convolution(**sizes: int) -> Candidates:
    usual = {"batch": 1, "out_h": 28, "out_w": 28, "out_c": 64, "kernel_h": 3, "kernel_w": 3, "in_c": 32, "stride": 1,
             "layout": 0, "threads": 1}  # fmt: skip
    return get_kind("iree-conv2d").space(Task("iree-conv2d", usual | sizes, "fp32", DEVICE))


def product(**sizes: int) -> Candidates:
    usual = {"batch": 1, "m": 100, "n": 300, "k": 700, "a_transposed": 0, "b_transposed": 0, "threads": 1}
    return get_kind("iree-contraction").space(Task("iree-contraction", usual | sizes, "fp32", DEVICE))


def test_the_best_of_every_group_comes_before_the_second_of_any() -> None:
    groups = np.array([[1, 1], [1, 1], [2, 1], [2, 1], [3, 1]])
    expected = np.array([1.0, 2.0, 9.0, 8.0, 7.0])
    assert spread(groups, expected, 3).tolist() == [0, 3, 4]
    assert spread(groups, expected, 4).tolist() == [0, 1, 3, 4]
    assert spread(groups, expected, 99).tolist() == [0, 1, 2, 3, 4]
    assert spread(groups[:0], expected[:0], 3).tolist() == []


@pytest.mark.parametrize(
    ("inner", "block", "size", "wanted"), [(8, 64, 100, 64), (8, 64, 20, 24), (48, 32, 500, 48), (6, 64, 64, 60)]
)
def test_a_block_is_a_multiple_of_its_register_tile_and_covers_no_more_than_it_must(
    inner: int, block: int, size: int, wanted: int
) -> None:
    assert near(inner, block, size) == wanted


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize(
    "sizes", [(28, 28, 64, 32), (17, 25, 75, 51), (10, 10, 200, 320), (7, 7, 512, 512), (1, 1, 7, 5)], ids=str
)
def test_every_tile_of_a_convolution_divides_what_it_tiles(layout: int, sizes: tuple[int, ...]) -> None:
    rows, columns, channels, inputs = sizes
    space = convolution(out_h=rows, out_w=columns, out_c=channels, in_c=inputs, layout=layout)
    assert space.config(0) == {}
    configs = [space.config(i) for i in range(1, len(space))]
    assert len({tuple(config.items()) for config in configs}) == len(configs)
    for config in configs:
        assert columns % config["tile_w"] == channels % config["tile_c"] == 0
        assert inputs % config["inner_k"] == 0
        assert config["tile_w"] % config["inner_w"] == config["tile_c"] % config["inner_c"] == 0
        assert config["tile_h"] <= rows


@pytest.mark.parametrize("layout", [0, 1])
def test_common_convolutions_have_many_candidates(layout: int) -> None:
    assert len(convolution(layout=layout)) > 100
    assert len(convolution(out_h=7, out_w=7, out_c=512, in_c=512, layout=layout)) > 10


def test_a_product_has_both_of_irees_own_ways_first_and_different_tiles_after() -> None:
    space = product()
    assert space.config(0) == {}
    assert space.config(1) == {"data_tiling": 1}
    configs = [space.config(i) for i in range(2, len(space))]
    assert len({tuple(config.items()) for config in configs}) == len(configs) > 100
    assert all(config["tile_m"] % config["inner_m"] == config["tile_n"] % config["inner_n"] == 0 for config in configs)


@pytest.mark.parametrize(
    "sizes", [{"m": 1}, {"n": 1}, {"k": 1}, {"m": 1, "n": 1, "k": 1}, {"batch": 64, "m": 3000, "n": 3000}], ids=str
)
def test_odd_products_have_a_space_too(sizes: dict[str, int]) -> None:
    space = product(**sizes)
    assert space.config(0) == {}
    assert len(space) >= 2
