"""Between convolutions, images stay channels last: nothing changes their order on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.numpy import NumpyBackend, evaluate
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Cast, Mul, Relu
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.movement import DepthToSpace, Expand, Pad, SpaceToDepth, Split, Transpose
from tercet.runtime.ops.norm import GroupNormalization
from tercet.runtime.ops.pool import MaxPool
from tercet.runtime.ops.quantize import DequantizeLinear, QuantizeLinear
from tercet.runtime.ops.reduce import ArgMax, ReduceMax, ReduceMean
from tercet.runtime.ops.resize import GridSample, Resize
from tercet.runtime.ops.shape import Reshape, Unsqueeze
from tercet.runtime.options import Options
from tercet.runtime.passes.images import join_whole
from tercet.runtime.session.model import Model

from ..passes.graphs import passed
from ..plan.nets import Net
from .dry import normal, planned
from .emulator import needs_compiler

OPTIONS = Options(skip=("fold_constants", "fold_pad", "merge_linear", "drop_requantization"))


def resized(net: Net, x: Value, mode: str = "linear", height: int = 7, width: int = 9) -> Value:
    sizes = net.graph.constant(np.array([*x.tensor.dims[:2], height, width]), "")
    made = net.graph.insert(Resize(mode=mode), [x, None, None, sizes]).output
    infer(net.graph)
    return made


def sampled(net: Net, x: Value, mode: str = "linear") -> Value:
    """Positions are in C order, though they have as many axes as the image."""
    n, _, height, width = x.tensor.dims
    grid = net.graph.constant(np.tanh(normal(n, height, width, 2)) * np.float32(1.2), "")
    return net.add(GridSample(mode=mode), x, grid)


def padded(net: Net, x: Value, mode: str = "constant") -> Value:
    amounts = net.graph.constant(np.array([0, 0, 1, 2, 0, 0, -1, 1]), "")
    return net.add(Pad(mode=mode), x, amounts)


def quantized(net: Net, x: Value) -> Value:
    """Quantize by one number, and back by one number a channel."""
    scales = np.linspace(0.02, 0.05, x.tensor.dims[1], dtype=float32)
    numbers: list[Any] = [np.float32(0.03), np.int8(3), scales]
    step, zero, steps = (net.graph.constant(np.asarray(n), "") for n in numbers)
    quanta = net.add(QuantizeLinear(), x, step, zero)
    return net.add(DequantizeLinear(axis=1), quanta, steps)


def reduced(net: Net, x: Value, op: Any, *axes: int) -> Value:
    return net.add(Add(), x, net.add(op, x, net.graph.constant(np.array(axes), "")))


def greatest_of_lines(net: Net, x: Value) -> Value:
    """The neighbours of a point are an axis that a network of points reduces (DGCNN)."""
    last = net.graph.constant(np.array([3]), "")
    line = net.add(ReduceMax(keepdims=0), x, last)
    return net.add(Add(), x, net.add(Unsqueeze(), line, last))


def picked(net: Net, x: Value) -> Value:
    indices = net.graph.constant(np.array([5, 0, 7, 7, 1, 2, 3, 9]), "")
    return net.add(Gather(axis=1), x, indices)


def grouped(net: Net, x: Value, number: int) -> Value:
    rows = (net.graph.constant(normal(x.tensor.dims[1]), "") for _ in range(2))
    return net.add(GroupNormalization(num_groups=number), x, *rows)


def shuffled(net: Net, x: Value) -> Value:
    """ShuffleNet's shuffle, as exporters write it."""
    n, c, h, w = x.tensor.dims
    shapes = ((n, 2, c // 2, h, w), (n, c, h, w))
    cut, joined = (net.graph.constant(np.array(dims), "") for dims in shapes)
    transposed = net.add(Transpose(perm=(0, 2, 1, 3, 4)), net.add(Reshape(), x, cut))
    return net.add(Reshape(), transposed, joined)


def number(net: Net) -> Value:
    """A number that is computed, without axes (guidance of a ControlNet)."""
    axes = net.graph.constant(np.arange(4), "")
    return net.add(ReduceMean(keepdims=0), net.x, axes)


def scaled_twice(net: Net, x: Value) -> Value:
    """Two results of one kernel, both of which convolutions read."""
    scaled = net.add(Mul(), x, number(net))
    activated = net.add(Relu(), scaled)
    return net.add(Add(), net.conv(scaled, 8), net.conv(activated, 8))


KINDS: dict[str, Callable[[Net, Value], Value]] = {
    "nearest": lambda net, x: resized(net, x, "nearest"),
    "linear": resized,
    "cubic": lambda net, x: resized(net, x, "cubic", 4, 3),
    "sampled": sampled,
    "sampled by cubes": lambda net, x: sampled(net, x, "cubic"),
    "pad": padded,
    "reflect": lambda net, x: padded(net, x, "reflect"),
    "DCR": lambda net, x: net.add(DepthToSpace(blocksize=2), x),
    "CRD": lambda net, x: net.add(DepthToSpace(blocksize=2, mode="CRD"), x),
    "to depth": lambda net, x: net.add(SpaceToDepth(blocksize=2), x),
    "quantized": quantized,
    "mean of pixels": lambda net, x: reduced(net, x, ReduceMean(), 2, 3),
    "greatest channel": lambda net, x: reduced(net, x, ReduceMax(), 1),
    "greatest of a line": greatest_of_lines,
    "number": lambda net, x: net.add(Mul(), x, number(net)),
    "number and two results": scaled_twice,
    "place": lambda net, x: net.add(Cast(to=float32), net.add(ArgMax(axis=1), x)),
    "picked": picked,
    "shuffled": shuffled,
    "one group": lambda net, x: grouped(net, x, 1),
    "four groups": lambda net, x: grouped(net, x, 4),
}


def model_of(net: Net, y: Value, *backends: Any) -> Model:
    net.graph.set_outputs({"y": y})
    return Model(net.graph.clone(), backends, OPTIONS, evaluate)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_reordered(kind: str, emulated: CudaBackend) -> None:
    net = Net(2, 8, 6, 4)
    made = KINDS[kind](net, net.conv(net.x, 32))
    y = net.conv(made, 8)
    model = model_of(net, y, emulated)
    rows = [row for row in model.placement() if row.kind != "copy"]
    assert [row.kind for row in rows].count("reformat") == 2, "before the first, behind the last"
    x = normal(2, 8, 6, 4)
    want = model_of(net, y, NumpyBackend()).run({"x": x})["y"]
    np.testing.assert_allclose(model.run({"x": x})["y"], want, atol=2e-5 * np.abs(want).max())


@needs_compiler
def test_what_channels_of_a_group_share_is_repeated_where_they_are(emulated: CudaBackend) -> None:
    """Groups are views of images in order; what is computed of them is read beside others."""
    net = Net(2, 8, 12, 8)
    x = net.conv(net.x, 32)
    parts, axes, dims = (
        net.graph.constant(np.array(n), "") for n in ((2, 4, 8, 12, 8), (2, 3, 4), (2, 32, 12, 8))
    )
    greatest = net.add(ReduceMax(), net.add(Reshape(), x, parts), axes)
    each = net.add(Reshape(), net.add(Expand(), greatest, parts), dims)
    y = net.conv(net.add(Mul(), x, each), 8)
    model = model_of(net, y, emulated)
    kinds = [row.kind for row in model.placement()]
    assert kinds.count("reformat") == 3, "before the first, to groups, behind the last"
    image = normal(2, 8, 12, 8)
    want = model_of(net, y, NumpyBackend()).run({"x": image})["y"]
    np.testing.assert_allclose(model.run({"x": image})["y"], want, atol=2e-5 * np.abs(want).max())


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("kind", ["resize", "pad", "gather"])
def test_results_lie_in_a_concat(kind: str, emulated: CudaBackend) -> None:
    net = Net(2, 8, 6, 4)
    inner = net.conv(net.x, 16)
    makers = {"resize": resized, "pad": padded, "gather": picked}
    made = makers[kind](net, inner)
    other = net.graph.constant(normal(16, 8, 1, 1), "")
    height, width = made.tensor.dims[2:]
    beside = net.add(Conv(pads=(0, 0, height - 6, width - 4)), net.x, other)
    y = net.conv(net.join(net.add(Relu(), beside), made), 8)
    model = model_of(net, y, emulated)
    assert model.placement()["cat"].kind == "view"
    x = normal(2, 8, 6, 4)
    want = model_of(net, y, NumpyBackend()).run({"x": x})["y"]
    np.testing.assert_allclose(model.run({"x": x})["y"], want, atol=2e-5 * np.abs(want).max())


@pytest.mark.slow
@needs_compiler
def test_quantization_is_part_of_a_convolution(emulated: CudaBackend) -> None:
    """What follows a convolution may be of another dtype, as long as its result is not."""
    net = Net(2, 8, 6, 4)
    step, zero = (net.graph.constant(np.asarray(n), "") for n in (np.float32(0.02), np.uint8(7)))
    quanta = net.add(QuantizeLinear(), net.add(Relu(), net.conv(net.x, 8)), step, zero)
    y = net.add(DequantizeLinear(), quanta, step, zero)
    model = model_of(net, y, emulated)
    assert [row.operators for row in model.placement() if row.kind == "step"] == [
        "Conv + Relu + QuantizeLinear + DequantizeLinear"
    ]
    x = normal(2, 8, 6, 4)
    want = model_of(net, y, NumpyBackend()).run({"x": x})["y"]
    got = model.run({"x": x})["y"]
    off = np.abs(got - want)
    assert off.max() <= np.float32(0.0201), "a rounding apart at most"
    assert (off > 1e-6).mean() < 0.01


# ── transposes ───────────────────────────────────────────────────────────────────────────────────


def test_what_comes_channels_last_is_read_so() -> None:
    """Pictures in NHWC, convolutions between, NHWC again: no byte is moved."""
    net = Net(2, 6, 4, 16)
    image = net.add(Transpose(perm=(0, 3, 1, 2)), net.x, name="in")
    y = net.add(Transpose(perm=(0, 2, 3, 1)), net.conv(net.conv(image, 16), 8), name="out")
    net.graph.set_outputs({"y": y})
    rows = planned(net.graph).rows
    assert [row.kind for row in rows] == ["copy", "view", "step", "step", "view", "copy"]


def test_pooling_between_transposes_reads_channels_last() -> None:
    """Nobody asks for a format: rows are pooled as an image, and are rows again."""
    net = Net(2, 6, 4, 16)
    image = net.add(Transpose(perm=(0, 3, 1, 2)), net.x)
    pooled = net.add(MaxPool(kernel_shape=(2, 2), strides=(2, 2)), image)
    net.graph.set_outputs({"y": net.add(Transpose(perm=(0, 2, 3, 1)), pooled)})
    rows = planned(net.graph).rows
    assert [row.kind for row in rows] == ["copy", "view", "step", "view", "copy"]


def line_and_image(net: Net) -> Value:
    """Rows as the pixels of a line, between convolutions an image, and rows again."""
    n, h, w, c = net.x.tensor.dims
    line, image = (net.graph.constant(np.array(d), "") for d in ((n, c, h * w), (n, c, h, w)))
    x = net.add(Reshape(), net.add(Transpose(perm=(0, 3, 1, 2)), net.x), line)
    weights = net.graph.constant(normal(c, c, 1), "")
    filters = net.graph.constant(normal(c, 1, 3, 3), "")
    y = net.add(Reshape(), net.add(Conv(), x, weights), image)
    y = net.add(Conv(group=c, pads=(1, 1, 1, 1)), y, filters)
    return net.add(Transpose(perm=(0, 2, 3, 1)), y)


def test_spatial_axes_are_reshaped_in_place() -> None:
    net = Net(2, 6, 4, 16)
    net.graph.set_outputs({"y": line_and_image(net)})
    rows = planned(net.graph).rows
    kinds = ["copy", "view", "view", "step", "view", "step", "view", "copy"]
    assert [row.kind for row in rows] == kinds


@pytest.mark.slow
@needs_compiler
def test_reshaped_spatial_axes_hold_the_same_numbers(emulated: CudaBackend) -> None:
    net = Net(2, 6, 4, 16)
    y = line_and_image(net)
    x = normal(2, 6, 4, 16)
    want = model_of(net, y, NumpyBackend()).run({"x": x})["y"]
    got = model_of(net, y, emulated).run({"x": x})["y"]
    np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())


def test_one_that_moves_something_runs() -> None:
    net = Net(2, 6, 4, 16)
    image = net.add(Transpose(perm=(0, 3, 2, 1)), net.x)
    net.graph.set_outputs({"y": net.conv(image, 16)})
    rows = planned(net.graph).rows
    assert [row.kind for row in rows].count("view") == 0


def test_axes_of_size_one_may_change_places() -> None:
    net = Net(4, 1, 6, 1)
    y = net.add(Transpose(perm=(3, 0, 2, 1)), net.x)
    net.graph.set_outputs({"y": net.add(Relu(), y)})
    assert [row.kind for row in planned(net.graph).rows] == ["copy", "view", "step", "copy"]


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("shape", [(2, 6, 4, 16), (2, 5, 16)], ids=["image", "line"])
def test_results_of_other_names(shape: tuple[int, ...], emulated: CudaBackend) -> None:
    """Views are results, and are read in both orders."""
    rank = len(shape)
    net = Net(*shape)
    image = net.add(Transpose(perm=(0, rank - 1, *range(1, rank - 1))), net.x)
    weights = net.graph.constant(normal(16, 16, *(1,) * (rank - 2)), "")
    made = net.add(Conv(), image, weights)
    flat = net.graph.constant(np.array([2, -1]), "")
    y = net.add(Transpose(perm=(0, *range(2, rank), 1)), net.add(Relu(), made))
    net.graph.set_outputs({"y": y, "same": image, "flat": net.add(Reshape(), y, flat)})
    feeds = {"x": normal(*shape)}
    with Model(net.graph.clone(), [NumpyBackend()], OPTIONS, evaluate) as reference:
        want = reference.run(feeds)
    with Model(net.graph.clone(), [emulated], OPTIONS, evaluate) as model:
        for name, got in model.run(feeds).items():
            np.testing.assert_allclose(got, want[name], atol=1e-5 * np.abs(want[name]).max())


# ── parts of images ──────────────────────────────────────────────────────────────────────────────


def partly_convolved(net: Net) -> Value:
    """A layer of a convolution of the first channels beside the others, plus the image."""
    image = net.conv(net.x, 32)
    first, rest = net.add(
        Split(axis=1, num_outputs=2), image, net.graph.constant(np.array([8, 24]), ""), outputs=2
    )
    return net.add(Add(), net.conv(net.join(net.conv(first, 8), rest), 32), image)


def test_what_a_partial_convolution_leaves_is_read_in_place() -> None:
    net = Net(2, 8, 6, 4)
    net.graph.set_outputs({"y": net.conv(partly_convolved(net), 16)})
    joined, _ = passed(net.graph, join_whole.run, "float32")
    kinds = [[row.kernel for row in planned(graph).rows] for graph in (net.graph, joined)]
    copies = [len([kernel for kernel in each if "copy" in kernel]) for each in kinds]
    assert copies == [1, 0]


@pytest.mark.slow
@needs_compiler
def test_results_of_a_partial_convolution(emulated: CudaBackend) -> None:
    net = Net(2, 8, 6, 4)
    y = net.conv(partly_convolved(net), 16)
    x = normal(2, 8, 6, 4)
    want = model_of(net, y, NumpyBackend()).run({"x": x})["y"]
    joined, _ = passed(net.graph, join_whole.run, "float32")
    got = Model(joined, [emulated], OPTIONS, evaluate).run({"x": x})["y"]
    np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())
