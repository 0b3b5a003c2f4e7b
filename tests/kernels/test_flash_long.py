"""Attention of many queries on Hopper: how rows are dealt to blocks, and on the emulator."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.attention.flash_long import LongShape, most_even
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.driver.compile import Compiler
from tercet.backends.cuda.recipe.targets import H200
from tercet.runtime.ir.dtypes import DType, bfloat16, float16

from .cubins import OptimizedPtxCompiler, registers
from .dry import DryCompiler, DryDevice, compiled_files, launches, normal, planned
from .emulator import needs_compiler
from .samples import Sample, compare, results_of
from .transformer_samples import attention


def launch_of(
    heads: tuple[int, int, int], length: int, size: int, processors: int = 132, **attributes: Any
) -> Any:
    """Return the launch of self-attention on a Hopper with so many multiprocessors."""
    found = attention(heads, (length, length), (size, size), float16, **attributes)
    target = replace(H200, processors=processors)
    return launches(planned(found.graph, DryDevice(compiler=DryCompiler(target))))[0]


@pytest.mark.parametrize(
    ("heads", "length", "size", "entry"),
    [
        ((4, 8, 8), 2048, 64, "attention_long"),
        ((4, 8, 8), 1024, 64, "attention_wgmma"),  # whose small blocks are not slower
        ((2, 8, 8), 1024, 80, "attention_long"),
        ((1, 8, 2), 256, 256, "attention_long"),
        ((1, 2, 2), 1024, 128, "attention_mma"),  # which splits keys over blocks
        ((4, 8, 8), 64, 128, "attention_mma"),
        ((4, 8, 8), 2048, 16, "attention_mma"),
        ((4, 12, 12), 197, 48, "attention_long"),
        ((1, 12, 12), 197, 48, "attention_wgmma"),
        ((32, 12, 12), 197, 32, "attention_wgmma"),  # blocks that see all keys at once
        ((32, 12, 12), 300, 32, "attention_long"),
    ],
    ids=str,
)
def test_ways(heads: tuple[int, int, int], length: int, size: int, entry: str) -> None:
    assert launch_of(heads, length, size).entry == entry


@pytest.mark.parametrize("size", [*range(24, 64, 8), *range(72, 257, 8)])
@pytest.mark.parametrize("causal", [0, 1])
def test_a_block_has_room(size: int, causal: int) -> None:
    """Registers, and all of shared memory but what the system keeps."""
    launch = launch_of((1, 2, 2), 1024, size, processors=4, is_causal=causal)
    assert launch.shared <= H200.shared
    at = dict(launch.constants)
    groups, keys = at["GROUPS"], at["KEYS"]
    assert groups * 128 * at["MANY"] + 128 * at["FEW"] <= 65536
    assert launch.block == groups * 128 + 128
    assert (-size // 64 * -32) + keys * 3 // 4 < at["MANY"]


@pytest.mark.parametrize("pairs", [3, 16, 128, 500])
@pytest.mark.parametrize("tiles", [4, 11, 64])
def test_blocks_get_about_as_many_keys(pairs: int, tiles: int) -> None:
    """Of a triangle of keys, where there are enough tiles to deal."""
    blocks = 132
    steps = tuple(range(1, tiles + 1))
    patch = most_even(steps, 1.0, pairs, pairs, blocks)
    loads = np.zeros(blocks)
    order = [
        steps[tile]
        for first in range(0, pairs, patch)
        for tile in reversed(range(tiles))
        for _ in range(min(patch, pairs - first))
    ]
    for number, count in enumerate(order):
        wave, place = divmod(number, blocks)
        loads[blocks - 1 - place if wave % 2 else place] += count + 1.0
    assert loads.sum() == pairs * (sum(steps) + tiles)
    assert loads.max() <= max(tiles + 1, 1.05 * loads.mean() + tiles / 4)


def test_queries_of_two_tiles_are_there_where_they_fit() -> None:
    assert LongShape(2, 2, 160, 2).fits(128, 128, H200)
    assert not LongShape(2, 2, 176, 2).fits(128, 128, H200)  # shared memory
    assert not LongShape(3, 2, 144, 2).fits(64, 64, H200)  # registers
    assert LongShape(2, 1, 80, 2).fits(256, 256, H200)


@pytest.mark.parametrize("size", [64, 256])
def test_nothing_is_spilled(size: int, cache: Path) -> None:
    """Of the sizes that leave the fewest registers."""
    launch = launch_of((1, 1, 1), 2048, size, processors=4, is_causal=1)
    assert registers(Compiler(H200, cache).code(launch.source))[1] == 0


def test_masks_of_rows_are_read_in_pairs(cache: Path) -> None:
    """What is added to the scores of two neighbouring keys is one load."""
    mask = normal(1, 1, 1026, 1026).astype(float16)
    found = attention((4, 8, 8), (1026, 1026), (64, 64), float16, mask)
    (launch,) = launches(planned(found.graph, DryDevice(compiler=DryCompiler(H200))))
    ptx = OptimizedPtxCompiler(H200, cache).code(launch.source).decode()
    loads = set(re.findall(r"ld\.global\S*", ptx))
    assert loads == {"ld.global.v2.u16"}


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    ("lengths", "size", "mask", "attributes"),
    [
        ((300, 300), (48, 48), None, {"is_causal": 1}),
        ((200, 130), (40, 64), None, {}),
        ((200, 300), (128, 128), None, {"is_causal": 1}),
        ((130, 150), (72, 96), (2, 1, 1, 150), {"left_window_size": 90}),
        ((65, 131), (128, 64), (65, 120), {"softcap": 2.0}),
        ((129, 170), (256, 200), None, {}),
        ((70, 80), (96, 96), (1, 4, 70, 80), {}),
    ],
)
def test_attention_of_many_queries(
    lengths: tuple[int, int],
    size: tuple[int, int],
    mask: tuple[int, ...] | None,
    attributes: dict[str, Any],
    dtype: DType,
    hopper: CudaBackend,
) -> None:
    """Two blocks deal with all heads; some groups of warps have no rows."""
    more = () if mask is None else (normal(*mask),)
    compare(attention((2, 4, 2), lengths, size, dtype, *more, **attributes), hopper)
    assert compiled_files(hopper) == {"attention/attention_long.cu"}


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("size", "attributes"),
    [((128, 72), {"is_causal": 1}), ((64, 128), {"is_causal": 1, "left_window_size": 40})],
)
def test_attention_of_a_prompt_to_caches(
    size: tuple[int, int], attributes: dict[str, Any], hopper: CudaBackend
) -> None:
    """Queries are the last of the keys that are there; nothing behind these reaches a result."""
    counts = np.array([300, 67])
    more = (None, None, None, counts)
    found = attention((2, 4, 2), (67, 500), size, float16, *more, **attributes)
    compare(found, hopper)
    assert compiled_files(hopper) == {"attention/attention_long.cu"}
    dirty = {name: x.copy() for name, x in found.feeds.items()}
    for i, count in enumerate(counts):
        dirty["x1"][i, :, count:] = np.nan
        dirty["x2"][i, :, count:] = np.inf
    clean, other = (results_of(Sample(found.graph, f), [hopper])[0] for f in (found.feeds, dirty))
    np.testing.assert_array_equal(clean, other)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("sizes", [(32, 32), (24, 56)], ids=str)
def test_small_heads_whose_blocks_see_all_keys(sizes: tuple[int, int], hopper: CudaBackend) -> None:
    compare(attention((4, 2, 2), (130, 70), sizes, float16), hopper)
    assert compiled_files(hopper) == {"attention/attention_wgmma.cu"}
