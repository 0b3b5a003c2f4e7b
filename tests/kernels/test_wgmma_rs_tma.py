"""Products of float32 with rows and results by TMA: plans, and emulated against float64."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.backends.cuda.conv import back_to_back
from tercet.backends.cuda.driver.compile import Compiler
from tercet.backends.cuda.gemm import f32
from tercet.backends.cuda.gemm.atoms import F16X3
from tercet.backends.cuda.gemm.schedules import wgmma_rs_tma
from tercet.backends.cuda.gemm.tables.f16x3 import WGMMA_RS_TMA
from tercet.backends.cuda.gemm.tile import Config, TimedConfig
from tercet.backends.cuda.recipe.launch import Launch
from tercet.backends.cuda.recipe.source import KernelSource
from tercet.backends.cuda.recipe.targets import H200
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, float32, float64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Abs, Add, Mul, Relu
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.plan.format import Format
from tercet.runtime.session.model import Model

from ..plan.nets import Net
from .cubins import all_compile, assert_arguments, assert_nothing_spills
from .dry import launches, normal, planned
from .emulator import needs_compiler
from .samples import OPTIONS
from .test_f16x3 import powers
from .test_image_halves import bottlenecks
from .test_image_halves import force as force_halves

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

#: Kernels that this module compiles, and samples.py has not.
COMPILES = {"gemm/wgmma_rs_tma.cu"}
BY_TITLE = {str(tile): tile for tile in WGMMA_RS_TMA}


def force(patch: pytest.MonkeyPatch, title: str) -> None:
    """Have every product that can take this tile."""
    config = TimedConfig(0.0, Config(BY_TITLE[title]))
    patch.setattr(f32, "arithmetic_of", lambda *_: f32.Arithmetic(F16X3))
    refusal = wgmma_rs_tma.refusal
    patch.setattr(wgmma_rs_tma, "choose", lambda g, e, _: None if refusal(g, e) else config)


def layer(
    x: tuple[int, ...], filters: int, end: str, dtype: DType = float32, *, absolute: bool = False
) -> Graph:
    """Return a convolution by 1x1 of an image, or a product of rows, with what follows it.

    Or that of absolute values.
    """
    net, is_image = Net(*x, dtype=dtype), len(x) == 4
    channels = x[1] if is_image else x[-1]
    w = normal(filters, channels) / np.float32(channels**0.5)
    w = w[..., None, None] if is_image else w.T

    def given(value: Value) -> Value:
        return net.add(Abs(), value) if absolute else value

    def constant(a: Array) -> Value:
        return net.graph.constant((np.abs(a) if absolute else a).astype(dtype), "")

    value = net.add(Conv() if is_image else MatMul(), given(net.x), constant(w))
    if end == "residual":
        shape = (x[0], filters, *x[2:]) if is_image else (*x[:-1], filters)
        z = net.graph.add_input("z", TensorType(dtype, shape))
        value = net.add(Relu(), net.add(Add(), given(z), value))
    elif end == "positions":
        value = net.add(Add(), value, constant(normal(1, *x[1:-1], filters)))
    else:
        value = net.add(Mul(), value, constant(normal(filters, 1, 1)))
    net.graph.set_outputs({"y": value})
    infer(net.graph)
    return net.graph


def evaluated(graph: Graph, feeds: dict[str, Array]) -> Array:
    """Return what numpy computes."""
    with Model(graph, open_backends("numpy", OPTIONS), OPTIONS, evaluate) as model:
        return next(iter(model.run(feeds).values()))


# ── plans ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("x", "filters", "end", "title"),
    [
        ((32, 64, 56, 56), 256, "residual", "split_linear 3xf16 128x128 Add+Relu"),
        ((32, 512, 28, 28), 128, "scaled", "split_linear 3xf16 192x64 Mul"),
        ((32, 144, 56, 56), 24, "residual", "split_linear 3xf16 128x32 Add+Relu"),
        ((32, 2048, 7, 7), 512, "scaled", "split_wgmma 3xf16 w128x192 split 3 Mul"),
        ((1, 64, 56, 56), 256, "residual", "split_linear 3xf16 128x32 Add+Relu"),
        ((32, 64, 56, 56), 254, "residual", "split_wgmma 3xf16 w64x128 Add+Relu"),
    ],
)
def test_many_rows(x: tuple[int, ...], filters: int, end: str, title: str) -> None:
    """Where each multiprocessor has a tile, and neither splits nor rows speak against it."""
    found = launches(planned(layer(x, filters, end), conv="tensor_cores"))
    assert title in [launch.title for launch in found]


# ── emulated ─────────────────────────────────────────────────────────────────────────────────────


@needs_compiler
@pytest.mark.parametrize("end", ["residual", "scaled"])
@pytest.mark.parametrize("title", BY_TITLE)
def test_tiles(title: str, end: str, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles per block, with rows, columns and terms that no tile divides.

    Each result against float64, relative to the products that it is the sum of. Pixels have
    different magnitudes, and one of them is infinite.
    """
    force(monkeypatch, title)
    channels = 70 if title == "128x64" else 72  # no fours are packed
    shape, filters = (1, channels, 19, 23), BY_TITLE[title].bn + 4
    feeds = {"x": normal(*shape) * powers(-60, 60, 1, 1, 19, 23)}
    feeds["x"][0, 5, 4, 6] = np.inf
    if end == "residual":
        feeds["z"] = normal(1, filters, 19, 23)
    ways = replace(OPTIONS, conv="tensor_cores")
    with Model(layer(shape, filters, end), [hopper], ways, evaluate) as model:
        assert any("split_linear" in row.kernel for row in model.prepare().rows)
        (got,) = model.run(feeds).values()
    wide = {name: a.astype(float64) for name, a in feeds.items()}
    want = evaluated(layer(shape, filters, end, float64), wide)
    limit = evaluated(layer(shape, filters, end, float64, absolute=True), wide)
    finite = np.isfinite(want) & np.isfinite(limit)
    assert 0 < np.count_nonzero(~finite) < want.size / 2
    np.testing.assert_array_equal(got[~finite], want[~finite].astype(np.float32))
    assert (np.abs(got[finite] - want[finite]) <= 4e-7 * np.abs(limit[finite])).all()


@needs_compiler
@pytest.mark.parametrize("title", BY_TITLE)
def test_positions_of_images(
    title: str, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A constant that all images add, whose tiles have rows of several, or end within one."""
    force(monkeypatch, title)
    for rows in (BY_TITLE[title].bm - 27, 9):
        shape, filters = (5, rows, 72), BY_TITLE[title].bn + 4
        feeds = {"x": normal(*shape)}
        graph, wide = (layer(shape, filters, "positions", dtype) for dtype in (float32, float64))
        with Model(graph, [hopper], replace(OPTIONS, conv="tensor_cores"), evaluate) as model:
            steps = [row for row in model.prepare().rows if row.kind == "step"]
            assert ["split_linear" in row.kernel for row in steps] == [True]
            (got,) = model.run(feeds).values()
        want = evaluated(wide, {"x": feeds["x"].astype(float64)})
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.abs(want).max())


@needs_compiler
def test_rows_of_matrices(hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, "128x64")
    shape, ways = (3, 50, 40), replace(OPTIONS, algorithms={"MatMul": "tensor_cores"})
    feeds = {"x": normal(*shape), "z": normal(3, 50, 68)}
    with Model(layer(shape, 68, "residual"), [hopper], ways, evaluate) as model:
        assert any("split_linear" in row.kernel for row in model.prepare().rows)
        (got,) = model.run(feeds).values()
    wide = {name: a.astype(float64) for name, a in feeds.items()}
    want = evaluated(layer(shape, 68, "residual", float64), wide)
    assert np.linalg.norm(got - want) <= 4e-7 * np.linalg.norm(want)


@needs_compiler
@pytest.mark.parametrize("magnitude", [1e-30, 1e30])
@pytest.mark.parametrize("title", ["128x128", "192x64"])
def test_results_in_halves(
    title: str, magnitude: float, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Convolutions of images in halves read them, at any magnitude.

    Where others read an image, too, or add it, it is stored both ways; pixels may be apart.
    """
    force_halves(monkeypatch, "w64x64")
    force(monkeypatch, title)
    monkeypatch.setattr(back_to_back, "LEAST", inf)  # pairs are tried, and refused
    shape = 2, 64, 13, 11
    x = normal(*shape) * np.float32(magnitude)
    ways = {"conv1": "tensor_cores", "conv4": "tensor_cores", "conv6": "tensor_cores"}
    options = replace(OPTIONS, algorithms=ways)
    with Model(bottlenecks(shape, 128), [hopper], options, evaluate) as model:
        rows = [row for row in model.prepare().rows if "split_linear" in row.kernel]
        formats = [tuple(slot.format for slot in row.outputs) for row in rows]
        halves, last = Format.PIXEL_HALVES, Format.CHANNELS_LAST
        assert {(halves,), (last,), (last, halves)} <= set(formats)
        compiler: Any = hopper.device.compiler
        assert any(dict(source.constants).get("APART") for source in compiler.sources)
        (got,) = model.run({"x": x}).values()
    want = evaluated(bottlenecks(shape, 128, float64), {"x": x.astype(float64)})
    assert np.linalg.norm(got - want) <= 1e-6 * np.linalg.norm(want)


# ── compiling ────────────────────────────────────────────────────────────────────────────────────


def test_they_compile(cache: Path) -> None:
    """Tiles fit in shared memory; of the largest, no sums spill."""
    found = list[Launch]()
    for title in BY_TITLE:
        with pytest.MonkeyPatch.context() as patch:
            force(patch, title)
            graphs = [layer((32, 64, 56, 56), 128, end) for end in ("residual", "scaled")]
            for graph in (*graphs, bottlenecks((32, 64, 28, 28), 128)):
                made = launches(planned(graph, conv="tensor_cores"))
                found += [launch for launch in made if launch.file in COMPILES]
    assert all(launch.shared <= H200.shared for launch in found)
    all_compile([launch.source for launch in found], H200, cache, COMPILES)
    assert_arguments(found, H200, cache)


@pytest.mark.slow
def test_nothing_spills(cache: Path) -> None:
    sources = dict[KernelSource, None]()
    for title in BY_TITLE:
        with pytest.MonkeyPatch.context() as patch:
            force(patch, title)
            made = launches(planned(layer((32, 64, 56, 56), 128, "residual"), conv="tensor_cores"))
            sources |= {launch.source: None for launch in made if launch.file in COMPILES}
    assert len(sources) == len(WGMMA_RS_TMA)
    assert_nothing_spills(sources, Compiler(H200, cache))


@pytest.mark.parametrize("images", [1, 32])
def test_large_tensors_are_read_from_the_end(images: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernel before, or a reformat, has stored last is in the cache; or all of it is."""
    monkeypatch.setattr(back_to_back, "MIN_PIXELS", inf)
    net = Net(images, 64, 56, 56)
    value = net.x
    for filters in (256, 64, 256, 64):
        w = normal(filters, value.tensor.dims[1], 1, 1)
        value = net.add(Relu(), net.add(Conv(), value, net.graph.constant(w)))
    net.graph.set_outputs({"y": value})
    infer(net.graph)
    made = [one for one in launches(planned(net.graph)) if one.is_reversible]
    assert len(made) == 4
    assert [one.backwards for one in made] == [images > 1, False, images > 1, False]
