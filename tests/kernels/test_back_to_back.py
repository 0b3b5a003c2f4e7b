"""Back-to-back 1x1 convolutions: which are one kernel, and their results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.backends.cuda.conv import back_to_back as kernel
from tercet.backends.cuda.conv.back_to_back import Form, Sizes
from tercet.backends.cuda.driver.compile import Compiler
from tercet.backends.cuda.recipe.targets import A100, H200
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Relu
from tercet.runtime.ops.pool import GlobalAveragePool

from .cubins import assert_fits
from .dry import (
    DryCompiler,
    DryDevice,
    apply,
    compiled_files,
    entries_of,
    launches,
    normal,
    planned,
)
from .emulator import needs_compiler
from .samples import OPTIONS, Sample, results_of
from .test_image_halves import force

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tercet.backends.cuda.backend import CudaBackend
    from tercet.backends.cuda.recipe.launch import Launch

COMPILES = {"conv/back_to_back.cu"}
#: Images, side, and channels of the image, between the convolutions, and behind them; and a form.
CASES = (
    ((1, 7, 96, 384, 64), Form(24, 2, 3, 2)),
    ((1, 7, 96, 384, 64), Form(16, 4, 2, 4)),
    ((2, 5, 40, 256, 256), Form(32, 4, 1, 2)),
    ((2, 5, 64, 200, 136), Form(8, 2, 2, 1)),
    ((1, 8, 128, 1024, 320), Form(8, 2, 8, 0)),
)
#: The same in float32, whose channels fill whole steps.
WIDE_CASES = (
    ((1, 7, 64, 384, 64), Form(24, 2, 3, 2)),
    ((1, 7, 128, 512, 64), Form(16, 4, 2, 4)),
    ((2, 5, 64, 256, 128), Form(24, 4, 1, 4)),
    ((2, 5, 128, 256, 136), Form(8, 2, 2, 1)),
    ((1, 6, 64, 256, 192), Form(16, 2, 2, 2)),
    ((1, 6, 128, 512, 128), Form(16, 2, 4, 0)),
)

#: Units of ResNet-50 for one image, as `CASES` says.
UNITS = (
    *((1, 56, 64, 256, 64), (1, 56, 64, 256, 128)),
    *((1, 28, 128, 512, 128), (1, 14, 256, 1024, 256)),
)


def force_form(patch: pytest.MonkeyPatch, form: Form) -> None:
    """Have all pairs computed in this form."""
    patch.setattr(kernel, "quickest", lambda *_: (0.0, form))
    patch.setattr(kernel, "LEAST", 0.0)
    patch.setattr(kernel, "MAX_BYTES", 1 << 20)


def unit(
    shape: tuple[int, ...],
    dtype: DType,
    *,
    adds: bool = True,
    bias: bool = True,
    reads: bool = True,
    goes_on: bool = False,
) -> Sample:
    """Return the end of a residual unit and the begin of the next one.

    Args:
        shape: see `CASES`.
        dtype: of all tensors.
        adds: whether a tensor is added in between.
        bias: whether convolutions have one.
        reads: whether what is in between is a result as well.
        goes_on: whether a convolution by 3x3 reads the result.
    """
    images, side, channels, hidden, filters = shape
    graph = Graph("unit")
    feeds = {"x": normal(images, channels, side, side).astype(dtype)}
    if adds:
        feeds["added"] = normal(images, hidden, side, side).astype(dtype)
    inputs = {name: graph.add_input(name, TensorType(dtype, a.shape)) for name, a in feeds.items()}

    def conv(value: Value, of: int, to: int, size: int = 1) -> Value:
        w = normal(to, of, size, size) / np.float32(size * of**0.5)
        constants = [graph.constant(a.astype(dtype)) for a in (w, normal(to))[: 1 + bias]]
        return apply(graph, Conv(pads=(size // 2,) * 4), value, *constants)

    y = conv(inputs["x"], channels, hidden)
    if adds:
        y = apply(graph, Add(), y, inputs["added"])
    between = apply(graph, Relu(), y)
    z = apply(graph, Relu(), conv(between, hidden, filters))
    if goes_on:
        z = conv(z, filters, 32, 3)
    graph.set_outputs({"z": z, **({"between": between} if reads else {})})
    infer(graph)
    return Sample(graph, feeds)


ENTRIES = {float16: "back_to_back", float32: "back_to_back_f16x3"}


@pytest.mark.parametrize("dtype", [float16, float32], ids=lambda dtype: dtype.name)
def test_what_is_one_kernel(dtype: DType) -> None:
    for shape in UNITS:
        assert entries_of(unit(shape, dtype).graph) == [ENTRIES[dtype]]


@pytest.mark.parametrize(
    "shape",
    [
        (32, 28, 128, 512, 128),  # more rows than blocks that run at once have
        (1, 14, 1024, 4096, 1024),  # weights that do not fit
        (1, 5, 64, 256, 64),  # too few rows
        (1, 14, 512, 1024, 512),  # weights that take longer to read than two kernels
        (1, 28, 64, 64, 64),  # short layers
    ],
    ids=str,
)
def test_what_is_not(shape: tuple[int, ...]) -> None:
    assert "back_to_back" not in entries_of(unit(shape, float16).graph)


def test_what_other_patterns_take() -> None:
    """An older GPU, an algorithm that was asked for, and convolutions of other patterns."""
    graph = unit(UNITS[1], float16).graph
    assert "back_to_back" not in entries_of(graph, DryDevice(compiler=DryCompiler(A100)))
    assert "back_to_back" not in entries_of(graph, conv="tensor_cores")
    for follow in (depthwise, mean):
        made = unit(UNITS[1], float16, reads=False).graph
        made.set_outputs({"y": follow(made, made.outputs["z"])})
        infer(made)
        assert "back_to_back" not in entries_of(made)


def depthwise(graph: Graph, x: Value) -> Value:
    """Return a depthwise convolution of an image."""
    channels = x.tensor.dims[1]
    weights = graph.constant(normal(channels, 1, 3, 3).astype(x.tensor.dtype))
    return apply(graph, Conv(pads=(1,) * 4, group=channels), x, weights)


def mean(graph: Graph, x: Value) -> Value:
    """Return the means of the channels of an image."""
    return apply(graph, GlobalAveragePool(), x)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(("shape", "form"), CASES, ids=str)
def test_results(
    shape: tuple[int, ...],
    form: Form,
    dtype: DType,
    h200: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    force_form(monkeypatch, form)
    plain = dtype == bfloat16
    sample = unit(shape, dtype, adds=not plain, bias=not plain, reads=not plain)
    got = results_of(sample, [h200])
    assert compiled_files(h200) >= COMPILES
    bound = 8e-3 if plain else 1e-3
    for a, b in zip(got, results_of(sample, open_backends("numpy", OPTIONS)), strict=True):
        want = b.astype(np.float64)
        assert np.linalg.norm(a.astype(np.float64) - want) <= bound * np.linalg.norm(want)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("kind", ["all", "plain", "in halves"])
@pytest.mark.parametrize(("shape", "form"), WIDE_CASES, ids=str)
def test_results_of_float32(
    shape: tuple[int, ...],
    form: Form,
    kind: str,
    h200: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Results are stored in halves for a convolution that reads them so."""
    force_form(monkeypatch, form)
    plain, goes_on = kind == "plain", kind == "in halves" and shape[-1] % 64 == 0
    if goes_on:
        force(monkeypatch, "w64x32")
    sample = unit(shape, float32, adds=not plain, bias=not plain, reads=not plain, goes_on=goes_on)
    got = results_of(sample, [h200])
    assert compiled_files(h200) >= COMPILES | ({"gemm/image_halves.cu"} if goes_on else set())
    for a, b in zip(got, results_of(sample, open_backends("numpy", OPTIONS)), strict=True):
        want = b.astype(np.float64)
        assert np.linalg.norm(a.astype(np.float64) - want) <= 1e-6 * np.linalg.norm(want)


def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launch]:
    """Yield launches of all forms of some units; each tile, split or not, of the largest unit."""
    tiles: dict[tuple[DType, int, int, bool], tuple[tuple[int, ...], Form]] = {}
    for shape in UNITS:
        images, side, channels, hidden, filters = shape
        for dtype in (float16, float32):
            sizes = Sizes(images * side**2, channels, hidden, filters, dtype == float32)
            for form in sizes.forms(H200):
                tiles[dtype, form.rows, form.groups, form.splits > 1] = shape, form
    for (dtype, *_), (shape, form) in tiles.items():
        force_form(monkeypatch, form)
        yield from (
            launch
            for launch in launches(planned(unit(shape, dtype).graph))
            if launch.file in COMPILES
        )


@pytest.mark.slow
def test_nothing_spills(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, found = Compiler(H200, cache), list(made(monkeypatch))
    assert len(found) > 24
    assert_fits(found, compiler)
