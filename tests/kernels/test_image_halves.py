"""Convolutions of float32 images in halves: plans, and emulated kernels against float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.backends.cuda import claims
from tercet.backends.cuda.codegen.copies import into_halves
from tercet.backends.cuda.driver.compile import Compiler
from tercet.backends.cuda.gemm import f32, image_halves
from tercet.backends.cuda.gemm.atoms import F16X3
from tercet.backends.cuda.gemm.tables.f16x3 import IMAGE_HALVES
from tercet.backends.cuda.gemm.tile import Config, TimedConfig
from tercet.backends.cuda.recipe.source import KernelSource
from tercet.backends.cuda.recipe.targets import H200
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, float32, float64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Relu
from tercet.runtime.ops.pool import MaxPool
from tercet.runtime.plan.format import Format
from tercet.runtime.session.model import Model

from .cubins import all_compile, assert_nothing_spills
from .dry import launches, normal, planned, single
from .emulator import needs_compiler
from .samples import OPTIONS
from .test_f16x3 import powers

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

#: Kernels that this module compiles, and samples.py has not.
COMPILES = {"gemm/image_halves.cu"}
LAST, HALVES = Format.CHANNELS_LAST, Format.PIXEL_HALVES
ASKED: dict[str, Any] = {"conv": "in_halves"}
#: What reads floats.
FIRST = {"conv1": "tensor_cores"}


def force(patch: pytest.MonkeyPatch, name: str) -> None:
    """Have every convolution read halves that can, with this tile, and others in float16."""
    config = Config.parse(name, IMAGE_HALVES)
    patch.setattr(image_halves, "ways_of", lambda *_, **__: (TimedConfig(0.0, config),))
    patch.setattr(f32, "arithmetic_of", lambda *_: f32.Arithmetic(F16X3))
    patch.setattr(image_halves, "gain", lambda *_: 1e6)


class Images:
    """Makes graphs of convolutions with random weights, the same in every dtype."""

    def __init__(self, shape: tuple[int, ...], dtype: DType = float32) -> None:
        self.graph, self.dtype, self.count = Graph("images"), dtype, 0
        self.x = self.graph.add_input("x", TensorType(dtype, shape))
        self.channels = {self.x: shape[1]}

    def conv(
        self, x: Value, filters: int, side: int, add: Value | None = None, stride: int = 1
    ) -> Value:
        """Return Relu(Conv(x) + add), padded to the size of x over the stride."""
        self.count += 1
        channels = self.channels[x]
        w = normal(filters, channels, side, side) / np.float32(side * channels**0.5)
        arrays = [a.astype(self.dtype) for a in (w, normal(filters))]
        given = [self.graph.constant(a, f"w{self.count}_{i}") for i, a in enumerate(arrays)]
        op = Conv(pads=(side // 2,) * 4, strides=(stride,) * 2)
        y = self.graph.insert(op, [x, *given], 1, name=f"conv{self.count}").output
        if add is not None:
            y = self.graph.insert(Add(), [y, add], 1).output
        return self._made(self.graph.insert(Relu(), [y], 1).output, filters)

    def pool(self, x: Value) -> Value:
        """Return the maxima of 2 x 2 pixels."""
        op = MaxPool(kernel_shape=(2, 2), strides=(2, 2))
        return self._made(self.graph.insert(op, [x], 1).output, self.channels[x])

    def _made(self, value: Value, channels: int) -> Value:
        self.channels[value] = channels
        return value

    def done(self, y: Value) -> Graph:
        """Return the graph of this result."""
        self.graph.set_outputs({"y": y})
        infer(self.graph)
        return self.graph


def bottlenecks(shape: tuple[int, ...], width: int, dtype: DType = float32) -> Graph:
    """Return two residual blocks, the first of stride 2, between convolutions of 1 x 1."""
    net = Images(shape, dtype)
    x = net.conv(net.x, width, 1)
    y = net.conv(net.conv(x, width, 1), width, 3, stride=2)
    y = net.conv(y, 2 * width, 1, net.conv(x, 2 * width, 1, stride=2))
    y = net.conv(net.conv(net.conv(y, width, 1), width, 3), 2 * width, 1, y)
    return net.done(net.conv(y, 24, 1))


def pooled(shape: tuple[int, ...], width: int, dtype: DType = float32) -> Graph:
    """Return a convolution, and two with pooling behind it."""
    net = Images(shape, dtype)
    x = net.pool(net.conv(net.conv(net.x, 64, 3), 64, 3))
    return net.done(net.pool(net.conv(x, width, 3)))


def written(graph: Graph, **options: Any) -> list[tuple[str, tuple[Format, ...]]]:
    """Return the kernels of a plan, and the formats that they write."""
    layout = planned(graph, **options)
    steps = [row for row in layout.rows if row.kind not in ("copy", "view")]
    return [(row.kernel, tuple(slot.format for slot in row.outputs)) for row in steps]


# ── plans ────────────────────────────────────────────────────────────────────────────────────────


def test_what_stores_halves() -> None:
    """What large convolutions read; not what convolutions of 1 x 1 read that take no less time.

    Those read the image as it is.
    """
    net = Images((32, 64, 56, 56))
    x = net.conv(net.x, 64, 1)
    x = net.conv(net.conv(x, 64, 3), 256, 1, net.conv(x, 256, 1))
    formats = [found for kernel, found in written(net.done(x)) if "Relu" in kernel]
    assert formats == [(LAST, HALVES), (LAST,), (LAST,)]


def test_results_that_others_read_are_stored_twice() -> None:
    net = Images((32, 64, 56, 56))
    x = net.conv(net.x, 64, 1)
    net.graph.set_outputs({"y": net.conv(x, 64, 3), "x": x})
    infer(net.graph)
    formats = [found for kernel, found in written(net.graph) if "split_linear" in kernel]
    assert formats == [(LAST, HALVES)]


def test_short_convolutions_read_floats() -> None:
    assert not any("halves" in kernel for kernel, _ in written(bottlenecks((1, 64, 56, 56), 64)))


def test_few_pixels_are_cut_once() -> None:
    """By what stores them, if sums are long; convolutions by 1x1 would cut them in each block."""
    for channels, pixels, stored in ((1024, 7, HALVES), (192, 7, LAST), (1024, 28, LAST)):
        net = Images((1, channels, pixels, pixels))
        x = net.conv(net.conv(net.x, channels, 1), 512, 1)
        found = [each for kernel, each in written(net.done(x)) if "Relu" in kernel]
        assert found == [(stored,), (LAST,)]


def test_what_is_also_added_to_the_result_is_read_as_it_is() -> None:
    """Both operands of a convolution and its epilogue are one tensor, which has one format."""
    sizes = ((1, 1024, 7, 7), 1), ((1, 256, 14, 14), 3), ((32, 64, 56, 56), 3)
    for shape, side in sizes:
        net = Images(shape)
        x = net.conv(net.x, shape[1], 1)
        found = written(net.done(net.conv(x, shape[1], side, x)))
        assert [each for kernel, each in found if "Relu" in kernel] == [(LAST,), (LAST,)], found


def test_halves_are_weighed_against_what_is_fastest_without_boxes() -> None:
    """Boxes are for images that are not in halves, and do not pool; Winograd does both.

    It takes less time than boxes that are estimated to take a little less.
    """
    net = Images((1, 512, 14, 14))
    x = net.conv(net.conv(net.x, 512, 3), 512, 3)
    kernels = [kernel for kernel, _ in written(net.done(net.pool(net.conv(x, 512, 3))))]
    assert not any("in halves" in kernel or "boxes" in kernel for kernel in kernels)
    assert kernels[-2].endswith("winograd_results F(2x2,3x3) Relu MaxPool 2x2")


# ── emulated ─────────────────────────────────────────────────────────────────────────────────────


@needs_compiler
@pytest.mark.parametrize(
    ("name", "w", "how"),
    [
        ("w64x32", (24, 64, 1, 1), {}),
        ("w64x64", (72, 128, 3, 2), {"pads": (1, 0, 2, 1), "strides": (2, 1)}),
        ("w128x64 split 3", (20, 64, 3, 3), {"pads": (2,) * 4, "dilations": (2, 2)}),
    ],
)
def test_convolutions(
    name: str,
    w: tuple[int, ...],
    how: dict[str, Any],
    hopper: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each result against float64, relative to the products that it is the sum of.

    Pixels have different magnitudes, and one of them is infinite.
    """
    force(monkeypatch, name)
    x = normal(2, w[1], 9, 11) * powers(-60, 60, 2, 1, 9, 11)
    x[1, 5, 4, 6] = np.inf
    arrays = x, normal(*w)
    with Model(
        single("Conv", arrays, (1,), **how), [hopper], replace(OPTIONS, **ASKED), evaluate
    ) as model:
        assert "convolve_halves" in model.prepare().rows[3].kernel
        (got,) = model.run({"x0": x}).values()
    wide = [a.astype(float64) for a in arrays]
    want, limit = (
        evaluated(single("Conv", part, (1,), **how), part[0])
        for part in (wide, [np.abs(a) for a in wide])
    )
    finite = np.isfinite(want)
    assert 0 < np.count_nonzero(~finite) < want.size / 2
    np.testing.assert_array_equal(got[~finite], want[~finite].astype(np.float32))
    assert (np.abs(got[finite] - want[finite]) <= 4e-7 * limit[finite]).all()


def evaluated(graph: Graph, x: Array) -> Array:
    """Return what numpy computes."""
    with Model(graph, open_backends("numpy", OPTIONS), OPTIONS, evaluate) as model:
        return next(iter(model.run({graph.inputs[0].name: x}).values()))


@needs_compiler
@pytest.mark.parametrize(
    ("name", "make", "shape", "magnitude"),
    [
        ("w64x64", bottlenecks, (2, 64, 9, 7), 1.0),
        ("w192x128", bottlenecks, (2, 64, 9, 7), 1e-30),
        ("w64x64 split 2", bottlenecks, (1, 64, 9, 7), 1e30),
        ("w64x64", pooled, (2, 64, 12, 20), 1e30),
        ("w192x128", pooled, (1, 64, 12, 20), 1e-30),
        ("w64x64 split 2", pooled, (1, 64, 12, 12), 1.0),
    ],
)
def test_networks(
    name: str,
    make: Callable[..., Graph],
    shape: tuple[int, ...],
    magnitude: float,
    hopper: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What stores halves and what reads them, behind one another, at any magnitude."""
    force(monkeypatch, name)
    if " split " in name:  # the emulator runs clusters twice
        monkeypatch.setattr(claims, "_in_place", lambda *_: ())
    x = normal(*shape) * np.float32(magnitude)
    options = replace(OPTIONS, algorithms=FIRST)
    with Model(make(shape, 128), [hopper], options, evaluate) as model:
        rows = model.prepare().rows
        assert sum(slot.format is HALVES for row in rows for slot in row.outputs) >= 2
        assert sum("convolve_halves" in row.kernel for row in rows) >= 2
        (got,) = model.run({"x": x}).values()
    want = evaluated(make(shape, 128, float64), x.astype(float64))
    assert np.linalg.norm(got.astype(float64) - want) <= 1e-6 * np.linalg.norm(want)


# ── compiling ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_nothing_spills(cache: Path) -> None:
    """Of the tiles with the most sums per thread, unless they add residuals."""
    compiler = Compiler(H200, cache)
    sources = dict[KernelSource, None]()
    for name in ("w64x128", "w128x128", "w192x128"):
        with pytest.MonkeyPatch.context() as patch:
            force(patch, name)
            for graph in (bottlenecks((32, 64, 28, 28), 128), pooled((8, 64, 56, 56), 128)):
                found = [one for one in launches(planned(graph)) if one.file in COMPILES]
                plain = [one.source for one in found if "Add" not in one.note]
                sources[plain[0]] = None
    assert len(sources) == 6
    assert_nothing_spills(sources, compiler)


@pytest.mark.slow
def test_what_stores_halves_compiles(cache: Path) -> None:
    """Convolutions that read floats, and changes of format."""
    graphs = [bottlenecks((32, 64, 56, 56), 64), pooled((32, 64, 56, 56), 128)]
    sources = [one.source for graph in graphs for one in launches(planned(graph))]
    type_ = TensorType(float32, (2, 64, 5, 7))
    sources += [into_halves(type_, back=back, format=HALVES).source for back in (False, True)]
    all_compile(sources, H200, cache)
