"""A small network of each kind is planned for two GPUs in two precisions: a quick look at all.

Every operator that computes more than elements takes one kernel at most, and attention takes one.
Operators of elements, and those that move them, take none, but for a few that are counted here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from math import sqrt
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import tercet
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph, Node
from tercet.runtime.session.model import Model
from tercet.tools.workshop.generated_models import Sheet

from .dry import DryCompiler, DryDevice, launches, planned_model

PRODUCERS = Path(__file__).parents[1] / "producers"
#: Families of operators that compute more than elements: modules of `tercet.runtime.ops`.
WORK = {
    *("conv", "matmul", "attention", "norm", "pool", "recurrent", "reduce", "resize", "ml_trees"),
}
#: Files of kernels that take whatever no other takes.
NAIVE = {"conv/conv.cu", "conv/naive_nhwc.cu", "gemm/product.cu", "attention/attention.cu"}


def image(channels: int, side: int) -> list[ValueInfoProto]:
    return [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, channels, side, side))]


def tokens(count: int, width: int, name: str = "x") -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, count, width))


def classified(sheet: Sheet, x: str, width: int) -> ModelProto:
    x = sheet.node("Flatten", sheet.node("GlobalAveragePool", x), axis=1)
    return sheet.model(image(3, 64), (sheet.gemm(x, width, 10), (2, 10)), 18)


def residual_network() -> ModelProto:
    """Bottlenecks, one with a convolution beside it."""
    sheet = Sheet("residual", 0)
    x = sheet.node("Relu", sheet.conv("x", (3, 32), 7, 2))
    x = sheet.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for before, stride in ((32, 2), (128, 1)):
        y = sheet.node("Relu", sheet.conv(x, (before, 32), 1))
        y = sheet.node("Relu", sheet.conv(y, (32, 32), 3, stride))
        y = sheet.conv(y, (32, 128), 1)
        beside = x if before == 128 else sheet.conv(x, (before, 128), 1, stride)
        x = sheet.node("Relu", sheet.node("Add", y, beside))
    return classified(sheet, x, 128)


def inverted_residuals() -> ModelProto:
    """Each with a depthwise convolution, whose channels are scaled by what is in them."""
    sheet = Sheet("inverted", 0)
    x = sheet.node("HardSwish", sheet.conv("x", (3, 16), 3, 2))
    for before, after, stride in ((16, 24, 2), (24, 24, 1)):
        y = sheet.node("HardSwish", sheet.conv(x, (before, 96), 1))
        y = sheet.node("HardSwish", sheet.conv(y, (96, 96), 5, stride, 96))
        mean = sheet.node("GlobalAveragePool", y)
        factors = sheet.conv(sheet.node("Relu", sheet.conv(mean, (96, 24), 1)), (24, 96), 1)
        factors = sheet.node("HardSigmoid", factors, alpha=1 / 6)
        y = sheet.conv(sheet.node("Mul", y, factors), (96, after), 1)
        x = y if stride == 2 else sheet.node("Add", x, y)
    return classified(sheet, x, 24)


def normalized(sheet: Sheet, x: str, width: int) -> str:
    return sheet.node("LayerNormalization", x, *sheet.norm_parameters(width), axis=-1)


def attention(
    sheet: Sheet, parts: list[str], rows: tuple[int, ...], width: int, bias: tuple[str, ...] = ()
) -> str:
    """Add the attention of four heads to queries, keys and values of (batch, tokens) rows."""
    split = sheet.integers(*rows[:1], -1, 4, width // 4)
    q, k, v = (
        sheet.node("Transpose", sheet.node("Reshape", part, split), perm=perm)
        for part, perm in zip(parts, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True)
    )
    scores = sheet.node("Mul", sheet.node("MatMul", q, k), sheet.scalar(sqrt(4 / width)))
    for each in bias:
        scores = sheet.node("Add", scores, each)
    found = sheet.node("MatMul", sheet.node("Softmax", scores, axis=-1), v)
    found = sheet.node("Transpose", found, perm=[0, 2, 1, 3])
    return sheet.node("Reshape", found, sheet.integers(*rows, width))


def attended(
    sheet: Sheet, x: str, rows: tuple[int, ...], width: int, bias: tuple[str, ...] = ()
) -> str:
    """Add the attention of tokens to one another, between two linear layers."""
    joined = sheet.linear(x, width, 3 * width)
    parts = sheet.nodes_of("Split", (joined,), 3, axis=-1, num_outputs=3)
    return sheet.linear(attention(sheet, parts, rows, width, bias), width, width)


def with_perceptron(sheet: Sheet, x: str, width: int) -> str:
    y = sheet.gelu(sheet.linear(normalized(sheet, x, width), width, 4 * width))
    return sheet.node("Add", x, sheet.linear(y, 4 * width, width))


def vision_transformer() -> ModelProto:
    sheet, width = Sheet("vit", 0), 64
    weights = sheet.weight(width, 3, 8, 8, scale=0.1)
    bias = sheet.weight(width, scale=0.1)
    x = sheet.node("Conv", "x", weights, bias, kernel_shape=[8, 8], strides=[8, 8])
    x = sheet.node("Reshape", x, sheet.integers(0, width, 64))
    x = sheet.node("Transpose", x, perm=[0, 2, 1])
    x = sheet.node("Concat", sheet.weight(2, 1, width, scale=0.1), x, axis=1)
    x = sheet.node("Add", x, sheet.weight(1, 65, width, scale=0.1))
    for _ in range(2):
        y = attended(sheet, normalized(sheet, x, width), (2, 65), width)
        x = with_perceptron(sheet, sheet.node("Add", x, y), width)
    x = sheet.node("Gather", normalized(sheet, x, width), sheet.store(np.array(0)), axis=1)
    return sheet.model(image(3, 64), (sheet.gemm(x, width, 10), (2, 10)), 18)


def shifted_windows() -> ModelProto:
    """Attention within windows of seven by seven, those of the second block shifted by three."""
    sheet, width, windows = Sheet("windows", 0), 64, 2 * 2 * 2
    numbers = sheet.integers

    def rolled(x: str, by: int) -> str:
        for axis in (1, 2):
            first = sheet.node("Slice", x, numbers(0), numbers(by), numbers(axis))
            rest = sheet.node("Slice", x, numbers(by), numbers(99), numbers(axis))
            x = sheet.node("Concat", rest, first, axis=axis)
        return x

    x = "x"
    for shift in (0, 3):
        y = sheet.node("Reshape", normalized(sheet, x, width), numbers(2, 14, 14, width))
        y = rolled(y, shift) if shift else y
        y = sheet.node("Reshape", y, numbers(2, 2, 7, 2, 7, width))
        y = sheet.node("Transpose", y, perm=[0, 1, 3, 2, 4, 5])
        y = sheet.node("Reshape", y, numbers(windows, 49, width))
        bias = [sheet.weight(1, 4, 49, 49, scale=1)]
        if shift:
            hidden = sheet.rng.integers(0, 2, (4, 1, 49, 49)) * np.float32(-100)
            bias.append(sheet.store(np.tile(hidden, (2, 1, 1, 1)).astype(np.float32)))
        y = attended(sheet, y, (windows, 49), width, tuple(bias))
        y = sheet.node("Reshape", y, numbers(2, 2, 2, 7, 7, width))
        y = sheet.node("Transpose", y, perm=[0, 1, 3, 2, 4, 5])
        y = sheet.node("Reshape", y, numbers(2, 14, 14, width))
        y = rolled(y, -shift) if shift else y
        y = sheet.node("Reshape", y, numbers(2, 196, width))
        x = with_perceptron(sheet, sheet.node("Add", x, y), width)
    return sheet.model([tokens(196, width)], (x, (2, 196, width)), 18)


def u_net() -> ModelProto:
    sheet = Sheet("unet", 0)

    def twice(x: str, before: int, after: int) -> str:
        x = sheet.node("Relu", sheet.conv(x, (before, after), 3))
        return sheet.node("Relu", sheet.conv(x, (after, after), 3))

    def halved(x: str) -> str:
        return sheet.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])

    def doubled(x: str, before: int, beside: str) -> str:
        weights = sheet.weight(before, before // 2, 2, 2, scale=0.1)
        bias = sheet.weight(before // 2, scale=0.1)
        x = sheet.node("ConvTranspose", x, weights, bias, kernel_shape=[2, 2], strides=[2, 2])
        return sheet.node("Concat", beside, x, axis=1)

    first = twice("x", 3, 16)
    second = twice(halved(first), 16, 32)
    x = twice(halved(second), 32, 64)
    x = twice(doubled(x, 64, second), 64, 32)
    x = twice(doubled(x, 32, first), 32, 16)
    x = sheet.node("Sigmoid", sheet.conv(x, (16, 1), 1))
    return sheet.model(image(3, 64), (x, (2, 1, 64, 64)), 18)


def recurrent_network() -> ModelProto:
    """An LSTM and a GRU, both ways, of two sequences of 24 steps."""
    sheet, width = Sheet("recurrent", 0), 32
    x = sheet.node("Transpose", "x", perm=[1, 0, 2])
    for kind, gates, before in (("LSTM", 4, 32), ("GRU", 3, 64)):
        weights = [sheet.weight(2, gates * width, n, scale=0.1) for n in (before, width)]
        weights.append(sheet.weight(2, 2 * gates * width, scale=0.1))
        more = {"linear_before_reset": 1} if kind == "GRU" else {}
        x = sheet.node(kind, x, *weights, direction="bidirectional", hidden_size=width, **more)
        x = sheet.node("Transpose", x, perm=[0, 2, 1, 3])
        x = sheet.node("Reshape", x, sheet.integers(0, 0, -1))
    x = sheet.linear(sheet.node("Transpose", x, perm=[1, 0, 2]), 64, 10)
    return sheet.model([tokens(24, 32)], (x, (2, 24, 10)), 18)


def diffusion_block() -> ModelProto:
    """A residual block that is told the time, and attention to pixels and to a text."""
    sheet, width, side = Sheet("diffusion", 0), 64, 16

    def grouped(x: str) -> str:
        y = sheet.node("Reshape", x, sheet.integers(0, 8, -1))
        ones, zeros = (sheet.store(np.full(8, n, np.float32)) for n in (1, 0))
        y = sheet.node("InstanceNormalization", y, ones, zeros, epsilon=1e-5)
        y = sheet.node("Reshape", y, sheet.integers(2, width, side, side))
        scale, shift = (sheet.weight(width, 1, 1, scale=1.0) for _ in range(2))
        return sheet.node("Add", sheet.node("Mul", y, scale), shift)

    def silu(x: str) -> str:
        return sheet.node("Mul", x, sheet.node("Sigmoid", x))

    time = sheet.gemm(silu("time"), 32, width)
    time = sheet.node("Unsqueeze", time, sheet.integers(2, 3))
    y = sheet.node("Add", sheet.conv(silu(grouped("x")), (width, width), 3), time)
    x = sheet.node("Add", "x", sheet.conv(silu(grouped(y)), (width, width), 3))
    y = sheet.node("Reshape", grouped(x), sheet.integers(0, width, side * side))
    y = sheet.linear(sheet.node("Transpose", y, perm=[0, 2, 1]), width, width)
    own = attended(sheet, normalized(sheet, y, width), (2, side * side), width)
    y = sheet.node("Add", y, own)
    parts = [sheet.linear(normalized(sheet, y, width), width, width)]
    parts += [sheet.linear("text", 32, width) for _ in range(2)]
    other = sheet.linear(attention(sheet, parts, (2, side * side), width), width, width)
    y = with_perceptron(sheet, sheet.node("Add", y, other), width)
    y = sheet.node("Transpose", sheet.linear(y, width, width), perm=[0, 2, 1])
    x = sheet.node("Add", x, sheet.node("Reshape", y, sheet.integers(2, width, side, side)))
    given = helper.make_tensor_value_info("time", TensorProto.FLOAT, (2, 32))
    inputs = [*image(width, side), given, tokens(7, 32, "text")]
    return sheet.model(inputs, (x, (2, width, side, side)), 18)


def recorded(name: str) -> ModelProto:
    return onnx.load(PRODUCERS / name)


#: By kind: what makes the network, and how many kernels its operators of elements, and those that
#: move them, may take in all.
NETWORKS: Mapping[str, tuple[Callable[[], ModelProto], int]] = {
    "residual": (residual_network, 0),
    "inverted residuals": (inverted_residuals, 2),
    "vision transformer": (vision_transformer, 5),
    "shifted windows": (shifted_windows, 3),
    "U-Net": (u_net, 0),
    "diffusion": (diffusion_block, 2),
    "recurrent": (recurrent_network, 0),
    "decoder": (partial(recorded, "decoders/optimum_llama/model.onnx"), 8),
    "trees": (partial(recorded, "recorded/xgboost.onnx"), 0),
    "quantized": (partial(recorded, "quantized/cnn_qdq.onnx"), 3),
}
#: Of symbolic dimensions: a token behind 31 others.
SIZES = {"past_sequence_length": 31, "past_sequence_length + sequence_length": 32}


@pytest.fixture(scope="module", params=product(NETWORKS, ("float32", "float16")), ids=" in ".join)
def kind_and_model(request: pytest.FixtureRequest) -> Iterator[tuple[str, Model]]:
    name, precision = request.param
    with tercet.load(NETWORKS[name][0](), precision=precision) as model:
        yield name, model


def is_work(node: Node) -> bool:
    """Whether a node computes more than elements."""
    return type(node.op).__module__.rpartition(".")[2] in WORK


def most_kernels(graph: Graph) -> int:
    """Count what computes more than elements, a Softmax and the products around it as one."""
    works = [node.kind for node in graph.nodes if is_work(node)]
    return len(works) - 2 * works.count("Softmax")


@pytest.mark.parametrize("target", [A100, H200], ids=["A100", "H200"])
def test_plan(kind_and_model: tuple[str, Model], target: Target) -> None:
    """In half precision, each input and output may take another kernel, which casts it."""
    name, model = kind_and_model
    layout = planned_model(model, DryDevice(compiler=DryCompiler(target)), SIZES)
    assert not {launch.source.file for launch in launches(layout)} & NAIVE

    works, others = list[str](), list[str]()
    for row in layout.rows:
        if row.kind == "step":
            (works if any(map(is_work, row.nodes)) else others).append(row.kernel)
    assert len(works) <= most_kernels(model.imported), works

    is_half = model.options.precision == "float16"
    casts = [info for info in (*model.inputs, *model.outputs) if is_half and info.dtype == float32]
    assert len(others) <= NETWORKS[name][1] + len(casts), others
