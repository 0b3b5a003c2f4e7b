"""Attention of float32 as three float16 products: values of any magnitude, and what compiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.backends.cuda.attention import flash, flash_cut
from tercet.backends.cuda.attention.flash_f16x3 import (
    HOPPER_SHAPES,
    SHAPES,
    HopperShape,
    Shape,
)
from tercet.backends.cuda.attention.flash_mma import WarpShape
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.driver.compile import Compiler
from tercet.backends.cuda.recipe.launch import Launch
from tercet.backends.cuda.recipe.source import KernelSource
from tercet.backends.cuda.recipe.targets import A100, H200, TARGETS, Target
from tercet.runtime.ir.types import Array

from .cubins import all_compile, assert_nothing_spills
from .dry import DryCompiler, DryDevice, launches, normal, planned, single
from .emulator import needs_compiler
from .samples import OPTIONS, compare, results_of, sample

#: A shape of each kernel: several tiles of keys, several groups of warps.
WARPS, GROUPS = WarpShape(1, 2, 2, 16), HopperShape(2, 32, 1)
#: The same where a separate kernel cuts keys.
CUT = HopperShape(1, 64, 1)
COMPILES = {
    "attention/attention_f16x3.cu",
    "attention/attention_f16x3_wgmma.cu",
    "attention/attention_cut.cu",
    "attention/cut_keys.cu",
}


def operands(size: tuple[int, int]) -> list[Array]:
    """Return q, k and v of two heads."""
    return [normal(1, 2, n, width) for n, width in ((35, size[0]), (77, size[0]), (77, size[1]))]


def exact(q: Array, k: Array, v: Array) -> Array:
    """Return the attention in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights @ v / weights.sum(-1, keepdims=True)


def scaled(arrays: list[Array], kind: str) -> list[Array]:
    """Return operands of another magnitude."""
    factors = {"tiny": (1e-30, 1e30, 1e-30), "huge": (1e30, 1e-30, 1e30), "large": (8, 1, 1)}
    q, k, v = (x * np.float32(f) for x, f in zip(arrays, factors.get(kind, (1, 1, 1)), strict=True))
    if kind == "lognormal":
        return [np.exp(q), np.exp(k - 4), np.exp(v)]
    if kind == "relu":
        return [np.maximum(x, 0) for x in (q, k, v)]
    if kind == "zeros":
        q[:, :, 3] = k[:, :, :16] = v[:, :, 5:40] = 0
    if kind == "columns":
        q[..., 3], k[..., 3], v[..., 2] = q[..., 3] / 1000, k[..., 3] * 1000, v[..., 2] / 10000
    if kind == "rows":
        # Every other value is tiny; one is huge, but no query sees its key.
        v[:, :, ::2] *= np.float32(1e-30)
        v[:, :, 7] *= np.float32(1e30)
        k[:, :, 7], q[..., 0] = 0, 30
        k[:, :, 7, 0] = -1000
    return [q, k, v]


KINDS = ("normal", "relu", "lognormal", "tiny", "huge", "large", "zeros", "columns", "rows")


def force(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every attention of float32 have this shape."""
    monkeypatch.setattr(flash, "choose", lambda *_: shape)
    if shape is CUT:
        monkeypatch.setattr(flash_cut, "MIN_READERS", 1)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("shape", "size"),
    [
        *((shape, size) for shape in (WARPS, GROUPS, CUT) for size in ((64, 64), (40, 24))),
        (CUT, (72, 128)),  # two groups of warps, and another that brings keys
    ],
    ids=str,
)
def test_values_of_any_magnitude(
    size: tuple[int, int], shape: Shape, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors are not above those of float32, whatever the magnitudes of rows are."""
    force(shape, monkeypatch)
    for kind in KINDS:
        q, k, v = scaled(operands(size), kind)
        expected, attention = exact(q, k, v), sample("Attention", [q, k, v])
        plain = results_of(attention, open_backends("numpy", OPTIONS))[0]
        found = results_of(attention, (hopper,))[0]
        # By row, so that large ones do not hide others.
        of_rows = np.linalg.norm(expected, axis=-1)
        errors, limits = (np.linalg.norm(x - expected, axis=-1) for x in (found, plain))
        assert (errors <= 2 * limits.max() + 1e-6 * of_rows).all(), kind
        if kind == "rows":
            assert (errors <= 1e-5 * of_rows).all()


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("operand", range(3), ids="qkv".__getitem__)
@pytest.mark.parametrize("columns", [slice(5, 6), slice(None)], ids=["one", "row"])
@pytest.mark.parametrize("shape", [WARPS, GROUPS, CUT], ids=str)
def test_infinities_and_nans_come_out_as_in_float32(
    operand: int,
    columns: slice,
    shape: Shape,
    hopper: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    force(shape, monkeypatch)
    for number in (np.inf, -np.inf, np.nan):
        arrays = operands((64, 64))
        arrays[operand][0, 1, 17, columns] = number
        attention = sample("Attention", arrays)
        found, expected = (
            results_of(attention, backends)[0]
            for backends in ((hopper,), open_backends("numpy", OPTIONS))
        )
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("more", "attributes"),
    [
        ([normal(1, 4, 75, 77)], {}),
        ([normal(1, 1, 1, 70)], {"softcap": 2.0}),
        ([normal(75, 77) > 0], {"left_window_size": 20, "right_window_size": 3}),
        ([None, normal(1, 2, 9, 40), normal(1, 2, 9, 72)], {"is_causal": 1, "outputs": 3}),
        ([None, None, None, np.array([50])], {"is_causal": 1}),
    ],
    ids=["rows", "keys", "window", "past", "lengths"],
)
@pytest.mark.parametrize(("shape", "size"), [(GROUPS, 72), (CUT, 56)], ids=str)
def test_masks_windows_and_caches(
    more: list[Any],
    attributes: Any,
    shape: Shape,
    size: int,
    hopper: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of `attention_f16x3.cu` are among the samples of all kernels."""
    force(shape, monkeypatch)
    total = 75 if len(more) == 4 else 77
    q, k, v = normal(1, 4, 75, 40), normal(1, 2, total, 40), normal(1, 2, total, size)
    more = [x if x is None or x.ndim < 4 or x.shape[-1] != 72 else x[..., :size] for x in more]
    compare(sample("Attention", [q, k, v, *more], **attributes), hopper)


# ── which shape ──────────────────────────────────────────────────────────────────────────────────


def planned_for(
    target: Target, heads: tuple[int, int], lengths: tuple[int, int], size: int
) -> list[Launch]:
    """Return what an Attention of (batch, heads) launches on a GPU."""
    q, k = (np.zeros((*heads, n, size), np.float32) for n in lengths)
    device = DryDevice(compiler=DryCompiler(target=target))
    return launches(planned(single("Attention", [q, k, k]), device))


@pytest.mark.parametrize(
    ("target", "heads", "lengths", "size", "entry"),
    [
        (H200, (32, 12), (197, 197), 64, "attention_f16x3_wgmma"),
        (H200, (8, 8), (256, 1024), 128, "attention_f16x3_wgmma"),
        (H200, (8, 8), (1024, 1024), 128, "cut_keys"),
        (H200, (1, 8), (1500, 1500), 64, "cut_keys"),  # many read the same keys
        (H200, (4, 12), (128, 128), 64, "attention_f16x3_wgmma"),
        (H200, (1, 12), (197, 197), 64, "attention_f16x3"),
        (H200, (8, 8), (300, 300), 256, "attention_f16x3"),
        (A100, (32, 12), (197, 197), 64, "attention_f16x3"),
        (A100, (1, 12), (128, 128), 128, "attention_f16x3"),
        (H200, (32, 12), (16, 197), 64, "attention_tiles"),  # few queries
        (H200, (32, 12), (197, 15), 64, "attention_tiles"),  # few keys
        (TARGETS["sm_86"], (32, 12), (197, 197), 128, "attention_f16x3"),
        (TARGETS["sm_86"], (32, 12), (197, 197), 256, "attention"),  # little shared memory
    ],
    ids=str,
)
def test_kernels(
    target: Target, heads: tuple[int, int], lengths: tuple[int, int], size: int, entry: str
) -> None:
    work = planned_for(target, heads, lengths, size)[0]
    assert work.entry == entry
    assert work.shared <= target.shared


def test_eight_warps_share_the_keys_of_few_rows_of_small_heads() -> None:
    small, large = (planned_for(H200, (1, 12), (128, 128), size)[0] for size in (64, 128))
    assert (small.block, large.block) == (256, 128)


@pytest.mark.parametrize(("keys", "of_warp"), [(49, 16), (197, 32)])
def test_all_warps_have_keys(keys: int, of_warp: int) -> None:
    """Of windows of 49 pixels, and of all 197 patches."""
    (launch,) = planned_for(H200, (4, 12), (49, keys), 32)
    constants = dict(launch.constants)
    assert (constants["WARPS_N"], constants["KEYS"]) == (4, of_warp)


def test_few_blocks_do_not_share_a_multiprocessor() -> None:
    for lengths in ((128, 128), (256, 256)):
        few, many = (planned_for(H200, (n, 12), lengths, 64)[0] for n in (1, 32))
        assert few.entry in ("attention_f16x3", "attention_f16x3_wgmma")
        assert few.grid[0] <= H200.processors
        assert 2 * (few.shared + 1024) > H200.shared + 1024
        assert 2 * (many.shared + 1024) <= H200.shared + 1024


# ── what compiles ────────────────────────────────────────────────────────────────────────────────


def test_nothing_spills(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers suffice where blocks are not so many that a few bytes are worth it."""
    compiler = Compiler(H200, cache)
    shapes = [(WarpShape(1, 2, 4, 32), 64), *((HOPPER_SHAPES[n][0], 64 * n) for n in (1, 2))]
    sources = list[KernelSource]()
    for shape, size in (*shapes, (CUT, 64), (CUT, 128)):
        force(shape, monkeypatch)
        sources.append(planned_for(H200, (1, 12), (197, 197), size)[-1].source)
    assert_nothing_spills(sources, compiler)


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_shapes_compile(target: Target, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = list[KernelSource]()
    for shape in (*(shape for shape, _ in SHAPES), *HOPPER_SHAPES[1], *HOPPER_SHAPES[2], CUT):
        if isinstance(shape, HopperShape) and not target.has_wgmma:
            continue
        force(shape, monkeypatch)
        sources += (launch.source for launch in planned_for(target, (1, 12), (197, 197), 64))
    all_compile(sources, target, cache, COMPILES if target == H200 else frozenset())
