"""Poolings of several channels a thread, in either order of the channels."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.backends.cuda.ops import pool
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.errors import UnsupportedError
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, float64, int8, uint8
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Cast, Ceil, Floor, Mul, Relu, Sub
from tercet.runtime.ops.pool import AveragePool, LpPool, MaxPool
from tercet.runtime.plan.format import Format
from tercet.runtime.session.model import Model

from .cubins import OptimizedPtxCompiler, all_compile, assert_arguments
from .dry import Net, entries_of, launches, normal, planned, single
from .emulator import needs_compiler
from .samples import OPTIONS, Sample, compare

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

#: Kernels that this module compiles, and samples.py has not.
COMPILES = {"image/pool_columns.cu"}
SHAPE = (2, 8, 9, 7)
#: For layers of single numbers, which remain convolutions.
DEPTHWISE = replace(OPTIONS, conv="depthwise", skip=(*OPTIONS.skip, "lower_conv"))
POOLS: dict[str, Op] = {
    "max": MaxPool(kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
    "pairs": MaxPool(kernel_shape=(2, 2), strides=(2, 2), ceil_mode=1),
    "mean": AveragePool(kernel_shape=(3, 2), pads=(1, 0, 1, 1)),
    "padded": AveragePool(kernel_shape=(3, 3), pads=(1, 1, 1, 1), count_include_pad=1),
    "norm": LpPool(kernel_shape=(2, 3), p=2),
}


def graph_of(op: Op, *, last: bool, dtype: DType = float32) -> Graph:
    """Return a pooling; `last`: of what a convolution leaves channels last."""
    graph = Graph()
    value = graph.add_input("x", TensorType(dtype, SHAPE))
    if last:
        ones = graph.constant(np.ones((SHAPE[1], 1, 1, 1), dtype))
        value = graph.insert(Conv(group=SHAPE[1]), [value, ones]).output
    graph.set_outputs({"y": graph.insert(op, [value]).output})
    infer(graph)
    return graph


@needs_compiler
@pytest.mark.parametrize("last", [False, True], ids=["plain", "channels last"])
@pytest.mark.parametrize("kind", POOLS)
def test_several_channels(
    kind: str, last: bool, emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN and infinities go through, and stay in their channel."""
    monkeypatch.setattr(pool, "MUCH", 0)
    options = DEPTHWISE if last else OPTIONS
    graph = graph_of(POOLS[kind], last=last)
    x = normal(*SHAPE)
    x[0, 1, 2, 3], x[1, 5, 0, 0], x[1, 6, 8, 6] = np.nan, -np.inf, np.inf
    with Model(graph.clone(), [emulated], options, evaluate) as model:
        (row,) = (row for row in model.prepare().rows if row.kernel.startswith("pool"))
        assert (row.inputs[0].format is Format.CHANNELS_LAST) is last
        got = model.run({"x": x})["y"]
    with Model(graph.clone(), open_backends("numpy", OPTIONS), OPTIONS, evaluate) as model:
        want = model.run({"x": x})["y"]
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


#: Pooling of a layer that keeps the image's size.
MEAN = AveragePool(kernel_shape=(3, 3), pads=(1,) * 4)


def mixed_by_pooling(op: AveragePool | MaxPool, *, last: bool, dtype: DType) -> Graph:
    """Return x + scale · (pool(x) - x), a layer of PoolFormer."""
    graph = graph_of(op, last=last, dtype=dtype)
    *_, node = graph.nodes
    x, mean = node.operands[0], node.output
    scale = graph.constant(normal(SHAPE[1], 1, 1).astype(dtype))
    difference = graph.insert(Sub(), [mean, x]).output
    scaled = graph.insert(Mul(), [difference, scale]).output
    graph.set_outputs({"y": graph.insert(Add(), [x, scaled]).output})
    infer(graph)
    return graph


@needs_compiler
@pytest.mark.parametrize("last", [False, True], ids=["plain", "channels last"])
@pytest.mark.parametrize("dtype", [float16, float32, float64], ids=str)
def test_what_follows_a_mean_is_its_epilogue(
    dtype: DType, last: bool, emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the image, as it is or in the pixels of its rows."""
    error = {float16: 4e-3, float32: 1e-6, float64: 1e-12}[dtype]
    options = DEPTHWISE if last else OPTIONS
    graph = mixed_by_pooling(MEAN, last=last and dtype != float64, dtype=dtype)
    x = normal(*SHAPE).astype(dtype)
    with Model(graph.clone(), open_backends("numpy", OPTIONS), OPTIONS, evaluate) as model:
        want = model.run({"x": x})["y"].astype(float64)
    for much in (2**20, 0):
        monkeypatch.setattr(pool, "MUCH", much)
        with Model(graph.clone(), [emulated], options, evaluate) as model:
            steps = [row for row in model.prepare().rows if row.kind == "step"]
            assert steps[-1].kernel.endswith("3x3 Sub+Mul+Add"), [r.kernel for r in steps]
            got = model.run({"x": x})["y"].astype(float64)
        np.testing.assert_allclose(got, want, rtol=error, atol=error)


def samples() -> list[Sample]:
    """Return poolings with what follows them, for the GPU."""
    greatest = MaxPool(kernel_shape=(3, 3), pads=(1,) * 4)
    cases = product((greatest, MEAN), (False, True), (float16, float32))
    return [
        Sample(mixed_by_pooling(op, last=last, dtype=dtype), {"x": normal(*SHAPE).astype(dtype)})
        for op, last, dtype in cases
    ]


@needs_compiler
@pytest.mark.parametrize("last", [False, True], ids=["plain", "channels last"])
@pytest.mark.parametrize("dtype", [float16, float32, float64], ids=str)
def test_what_follows_a_maximum_is_its_epilogue(
    dtype: DType, last: bool, emulated: CudaBackend
) -> None:
    """As where activations come after pooling, unless a kernel of overlapping windows is faster."""
    options, greatest = DEPTHWISE if last else OPTIONS, MaxPool(kernel_shape=(3, 3), pads=(1,) * 4)
    graph = mixed_by_pooling(greatest, last=last and dtype != float64, dtype=dtype)
    x = normal(*SHAPE).astype(dtype)
    x[0, 1, 2, 3], x[1, 5, 0, 0] = np.nan, -np.inf
    with Model(graph.clone(), open_backends("numpy", OPTIONS), OPTIONS, evaluate) as model:
        want = model.run({"x": x})["y"].astype(float64)
    with Model(graph.clone(), [emulated], options, evaluate) as model:
        steps = [row for row in model.prepare().rows if row.kind == "step"]
        assert steps[-1].kernel.endswith("3x3 Sub+Mul+Add"), [r.kernel for r in steps]
        got = model.run({"x": x})["y"].astype(float64)
    error = {float16: 4e-3, float32: 1e-6, float64: 1e-12}[dtype]
    np.testing.assert_allclose(got, want, rtol=error, atol=error)


@needs_compiler
@pytest.mark.parametrize("dtype", [float16, float32], ids=str)
def test_what_follows_the_pooling_of_a_layer(dtype: DType, emulated: CudaBackend) -> None:
    """Of channels that are no whole words, as in PyTorch's example for MNIST."""
    graph = Graph()
    x = graph.add_input("x", TensorType(dtype, (2, 3, 10, 8)))
    weights = graph.constant((normal(10, 3, 3, 3) / 5).astype(dtype))
    image = graph.insert(Conv(pads=(1, 1, 1, 1)), [x, weights]).output
    pooled = graph.insert(MaxPool(kernel_shape=(2, 2), strides=(2, 2)), [image]).output
    graph.set_outputs({"y": graph.insert(Relu(), [pooled]).output})
    infer(graph)
    assert "elementwise" not in entries_of(graph)
    sample = Sample(graph, {"x": normal(2, 3, 10, 8).astype(dtype)})
    compare(sample, emulated, error=4e-3 if dtype == float16 else 5e-6)


@needs_compiler
def test_positions_beside_what_follows(emulated: CudaBackend) -> None:
    graph = graph_of(MaxPool(kernel_shape=(2, 2), strides=(2, 2)), last=False)
    *_, node = graph.nodes
    value, places = graph.insert(node.op, node.inputs, 2).outputs
    graph.set_outputs({"y": graph.insert(Mul(), [value, value]).output, "places": places})
    graph.sweep()
    infer(graph)
    assert entries_of(graph) == ["pool"]
    compare(Sample(graph, {"x": normal(*SHAPE)}), emulated)


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        (MaxPool(kernel_shape=SHAPE[2:]), float32),
        (AveragePool(kernel_shape=SHAPE[2:]), float32),
        (MaxPool(kernel_shape=(2, 2), strides=(2, 2)), uint8),
    ],
    ids=["whole images", "means of whole images", "integers"],
)
def test_what_follows_other_poolings_is_one_chain(op: Op, dtype: DType) -> None:
    graph = graph_of(op, last=False, dtype=dtype)
    value = graph.insert(Cast(to=float32), [graph.outputs["y"]]).output
    for other in (Add(), Mul()):
        value = graph.insert(other, [value, value]).output
    graph.set_outputs({"y": value})
    infer(graph)
    assert entries_of(graph)[1:] == ["elementwise"]


#: Windows that overlap.
OVERLAPPING = {
    "same": MaxPool(kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
    "ceiling": MaxPool(kernel_shape=(3, 3), strides=(2, 2), ceil_mode=1),
    "padded": MaxPool(kernel_shape=(2, 5), strides=(1, 2), pads=(0, 3, 1, 2)),
    "mean": AveragePool(kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
    "mean, ceiling": AveragePool(
        kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 0, 0), ceil_mode=1, count_include_pad=1
    ),
    "mean, padded": AveragePool(
        kernel_shape=(2, 5), strides=(1, 2), pads=(0, 3, 1, 2), count_include_pad=1
    ),
    "mean of nothing": AveragePool(kernel_shape=(3, 3), pads=(5, 4, 4, 5)),
}


@needs_compiler
@pytest.mark.parametrize("dtype", [float16, float32], ids=str)
@pytest.mark.parametrize("kind", OVERLAPPING)
def test_windows_that_overlap_are_read_by_rows(
    kind: str, dtype: DType, emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "MUCH", 0)
    graph = graph_of(OVERLAPPING[kind], last=True, dtype=dtype)
    x = normal(*SHAPE).astype(dtype)
    x[0, 1, 2, 3], x[1, 5, 0, 0], x[1, 6, 8, 6] = np.nan, -np.inf, np.inf
    with Model(graph.clone(), [emulated], DEPTHWISE, evaluate) as model:
        assert any(row.kernel.startswith("pool_columns") for row in model.prepare().rows)
        got = model.run({"x": x})["y"]
    with Model(graph.clone(), open_backends("numpy", OPTIONS), OPTIONS, evaluate) as model:
        want = model.run({"x": x})["y"]
    error = 0.0
    if isinstance(OVERLAPPING[kind], AveragePool):
        error = 1e-3 if dtype == float16 else 1e-6
    np.testing.assert_allclose(got.astype(float64), want.astype(float64), rtol=error, atol=error)


@needs_compiler
@pytest.mark.parametrize("much", [pool.MUCH, 0], ids=["by pixels", "by rows"])
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_the_mean_of_equal_elements_is_one_of_them(
    dtype: DType, much: int, emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows at the edges count four or six, others nine; their shares are rounded."""
    monkeypatch.setattr(pool, "MUCH", much)
    x = np.broadcast_to(normal(SHAPE[0], SHAPE[1], 1, 1), SHAPE).astype(dtype)
    with Model(graph_of(MEAN, last=True, dtype=dtype), [emulated], DEPTHWISE, evaluate) as model:
        kernels = [row.kernel for row in model.prepare().rows]
        assert any(k.startswith("pool_columns" if much == 0 else "pool_words") for k in kernels)
        np.testing.assert_array_equal(model.run({"x": x})["y"], x)


@needs_compiler
@pytest.mark.parametrize(
    ("op", "window", "kernel"),
    [(Floor(), (5, 11), "pool_words"), (Ceil(), (3, 5), "pool_columns")],
    ids=lambda value: value if isinstance(value, str) else str(value),
)
def test_means_that_are_whole_numbers_stay_whole(
    op: Op,
    window: tuple[int, int],
    kernel: str,
    emulated: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The share of one of 55 elements is rounded down, of 15 up."""
    monkeypatch.setattr(pool, "MUCH", 0)
    net, shape = Net(), (1, 32, 8, 13)
    ones = np.ones((shape[1], 1, 1, 1), float16)
    x = net.apply(Conv(group=shape[1]), net.input(*shape, dtype=float16), ones)
    net.outputs(net.apply(op, net.apply(AveragePool(kernel_shape=window), x)))
    numbers = np.arange(shape[1])[:, None, None]
    feeds = {name: np.broadcast_to(numbers, shape).astype(float16) for name in net.feeds}
    with Model(net.graph, [emulated], DEPTHWISE, evaluate) as model:
        assert any(row.kernel.startswith(kernel) for row in model.prepare().rows)
        (got,) = model.run(feeds).values()
    np.testing.assert_array_equal(got, np.broadcast_to(numbers, got.shape))


@pytest.mark.parametrize(
    ("much", "dtype", "divisions"),
    [(pool.MUCH, float16, 1), (0, float16, 4), (0, bfloat16, 4), (0, float32, 4 * 4)],
)
def test_means_of_16_bits_are_divided_once(
    much: int, dtype: DType, divisions: int, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread has a pixel, or four of them; of float32, each element is divided."""
    monkeypatch.setattr(pool, "MUCH", much)
    graph = graph_of(MEAN, last=True, dtype=dtype)
    *_, launch = launches(planned(graph, conv="depthwise"))
    ptx = OptimizedPtxCompiler(H200, cache).code(launch.source).decode()
    assert len(re.findall(r"(?:div|rcp)\.rn\.f32", ptx)) == divisions


#: One window over all of an image, and whether many threads share it.
WHOLE: dict[str, tuple[Op, bool]] = {
    "mean": (AveragePool(kernel_shape=(11, 10), pads=(1, 2, 1, 1)), True),
    "ceiling": (AveragePool(kernel_shape=(10, 9), strides=(4, 4), ceil_mode=1), True),
    "max": (MaxPool(kernel_shape=(10, 8), pads=(1, 0, 0, 1)), True),
    "padding counts": (
        AveragePool(kernel_shape=(11, 9), pads=(1, 1, 1, 1), count_include_pad=1),
        False,
    ),
    "gaps": (MaxPool(kernel_shape=(5, 4), dilations=(2, 2)), False),
}


@needs_compiler
@pytest.mark.parametrize("last", [False, True], ids=["plain", "channels last"])
@pytest.mark.parametrize("case", WHOLE)
def test_a_window_over_all_of_an_image(case: str, last: bool, emulated: CudaBackend) -> None:
    """Padding does not count: GoogLeNet pools 6 x 6 pixels by a padded window of 7 x 7."""
    op, shared = WHOLE[case]
    options = DEPTHWISE if last else OPTIONS
    for dtype, error in ((float16, 1e-3), (float32, 1e-6)):
        graph = graph_of(op, last=last, dtype=dtype)
        x = normal(*SHAPE).astype(dtype)
        with Model(graph.clone(), [emulated], options, evaluate) as model:
            kernels = [row.kernel for row in model.prepare().rows]
            assert any(k.startswith("reduce") for k in kernels) is shared
            got = model.run({"x": x})["y"]
        with Model(graph.clone(), open_backends("numpy", OPTIONS), OPTIONS, evaluate) as model:
            want = model.run({"x": x})["y"]
        np.testing.assert_allclose(
            got.astype(float64), want.astype(float64), rtol=error, atol=error
        )


def threads_of(dtype: DType, *x: int, **more: Any) -> tuple[int, int]:
    """Return channels and blocks of a plain max-pooling by 2 x 2."""
    image: Array = np.broadcast_to(dtype.type(1), x)
    graph = single("MaxPool", [image], kernel_shape=(2, 2), strides=(2, 2), **more)
    (launch,) = launches(planned(graph))
    return int(dict(launch.constants)["VECTOR"]), launch.grid[0]


def test_much_is_divided_among_fewer_threads() -> None:
    assert threads_of(float32, 32, 64, 224, 224) == (4, 32 * 64 * 112 * 112 // 4 // 128)
    assert threads_of(float32, 1, 64, 112, 112) == (1, 64 * 56 * 56 // 128)
    assert threads_of(float32, 32, 63, 224, 224) == (1, 32 * 63 * 112 * 112 // 128)
    assert threads_of(int8, 32, 64, 224, 224)[0] == 4
    assert threads_of(float32, 32, 64, 224, 224, outputs=2)[0] == 1


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_they_compile(target: Target, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MUCH", 0)
    found = [
        launch
        for dtype in (float16, float32, float64)
        for op in POOLS.values()
        for launch in launches(planned(graph_of(op, last=False, dtype=dtype)))
    ]
    found += [
        launch
        for dtype in (bfloat16, float16, float32)
        for kind in ("mean, ceiling", "same")
        for launch in launches(planned(graph_of(OVERLAPPING[kind], last=True, dtype=dtype)))
        if launch.entry == "pool_columns"
    ]
    assert [launch.entry for launch in found[-6:]] == ["pool_columns"] * 6
    monkeypatch.undo()
    found += [
        launch
        for dtype in (bfloat16, float16, float32)
        for launch in launches(planned(mixed_by_pooling(MEAN, last=True, dtype=dtype)))
        if launch.entry in {"pool", "pool_words"}
    ]
    large = [np.broadcast_to(np.float32(1), (1, 64, 1 << 13, 1 << 13))]
    found += launches(planned(single("MaxPool", large, kernel_shape=(2, 2))))
    all_compile({launch.source: None for launch in found}, target, cache, COMPILES)
    assert_arguments(found, target, cache)


@needs_compiler
@pytest.mark.parametrize(
    "op",
    [
        MaxPool(kernel_shape=(1, 2, 3, 1), strides=(1, 2, 1, 1), pads=(0, 1, 0, 0, 0, 0, 1, 0)),
        AveragePool(kernel_shape=(3, 1, 1, 2), strides=(2, 1, 1, 1)),
        LpPool(kernel_shape=(1, 1, 1, 3), p=1),
        MaxPool(kernel_shape=(1, 1, 1, 1)),
        AveragePool(kernel_shape=(1, 2, 2, 2), ceil_mode=1, strides=(1, 2, 2, 2)),
    ],
    ids=lambda op: f"{type(op).__name__}{op.kernel_shape}",
)
def test_axes_with_windows_of_one_element_are_joined(
    op: MaxPool | AveragePool | LpPool, emulated: CudaBackend
) -> None:
    """As in JAX's reduce_window, whose windows cover images and channels as well."""
    graph, x = Graph("pool"), normal(2, 3, 4, 5, 6, 3)
    node = graph.insert(op, [graph.add_input("x", TensorType(float32, x.shape))], 1, name="pool")
    graph.set_outputs({"y": node.output})
    infer(graph)
    with Model(graph.clone(), [emulated], OPTIONS, evaluate) as model:
        got = model.run({"x": x})["y"]
    with Model(graph.clone(), open_backends("numpy", OPTIONS), OPTIONS, evaluate) as model:
        want = model.run({"x": x})["y"]
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_windows_over_four_axes_are_declined() -> None:
    image = normal(1, 1, 4, 4, 4, 4)
    with pytest.raises(UnsupportedError, match="4 spatial axes"):
        planned(single("MaxPool", [image], kernel_shape=(2, 1, 2, 2)))
