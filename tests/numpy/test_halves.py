"""Halves: float32 is rounded to them bit for bit as numpy does, and they are sorted right."""

from __future__ import annotations

import numpy as np
import pytest

from tercet import run_op
from tercet.backends.numpy.numerics.halves import store


@pytest.mark.parametrize("low", [0, 1, 0x800, 0xFFF, 0x1000, 0x1001, 0x1FFF])
def test_every_exponent(low: int) -> None:
    """All 19 high bits, and numbers on either side of the places where rounding changes."""
    bits = (np.arange(1 << 19, dtype=np.uint32) << np.uint32(13)) | np.uint32(low)
    source = bits.view(np.float32)
    found = np.empty(source.shape, np.float16)
    with np.errstate(all="ignore"):
        store(found, source)
        wanted = source.astype(np.float16)
    known = ~np.isnan(source)
    assert (found.view(np.uint16) == wanted.view(np.uint16))[known].all()
    assert np.isnan(found[~known]).all()


def test_arrays_with_gaps() -> None:
    source = np.linspace(-1e-4, 1e5, 600, dtype=np.float32).reshape(20, 30)[:, ::2]
    found = np.zeros((20, 30), np.float16)[:, 1::2]
    with np.errstate(all="ignore"):
        store(found, source)
        assert (found == source.astype(np.float16)).all()


def test_every_half_is_widened() -> None:
    """Finite ones apart from the others, which numpy widens."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    for source in (halves, halves[np.isfinite(halves)], halves[:0x400], halves[0x8000:0x8400]):
        found = np.empty(source.shape, np.float32)
        with np.errstate(all="ignore"):
            store(found, source)
            wanted = source.astype(np.float32)
        known = ~np.isnan(source)
        assert (found.view(np.uint32) == wanted.view(np.uint32))[known].all()
        assert np.isnan(found[~known]).all()


@pytest.mark.parametrize("shape", [(3, 70_000), (40, 3, 500), (2, 2, 40_000), (90_000,)])
@pytest.mark.parametrize("has_gaps", [False, True])
def test_blocks_of_large_arrays(shape: tuple[int, ...], has_gaps: bool) -> None:
    wide = (*shape[:-1], shape[-1] * 2)
    draw = np.random.default_rng(0)
    source = np.maximum(draw.standard_normal(wide, np.float32), 0)
    narrow, again = np.zeros(wide, np.float16), np.zeros(wide, np.float32)
    part = np.s_[..., 1 : shape[-1] + 1] if has_gaps else ...
    store(narrow[part], source[part])
    store(again[part], narrow[part])
    wanted = np.zeros(wide, np.float16)
    wanted[part] = source[part]
    assert np.array_equal(narrow, wanted)
    assert np.array_equal(again, wanted.astype(np.float32))


@pytest.mark.parametrize("seed", range(8))
def test_distinct_halves_are_distinct(seed: int) -> None:
    """`np.sort` of halves leaves some out of order on some processors, and `np.unique` with it."""
    draw = np.random.default_rng(seed)
    kinds = draw.permutation(np.arange(-8, 8) / 4).astype(np.float16)
    places = draw.integers(0, len(kinds), 23040)
    values, first, inverse, counts = run_op("Unique", kinds[places], outputs=4)
    assert values.dtype == np.float16
    assert values.tolist() == sorted(kinds.tolist())
    assert (values[inverse] == kinds[places]).all()
    assert (kinds[places][first] == values).all()
    assert counts.tolist() == [int((kinds[places] == value).sum()) for value in values]
