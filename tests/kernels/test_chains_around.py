"""Elementwise nodes before and behind every operator: part of its kernel, or listed here.

What is listed is a launch of its own, whichever sample of the operator it is before or behind: the
tables are what could be part of kernels and is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.numpy import NumpyBackend, evaluate
from tercet.runtime.ir.dtypes import float16, float32
from tercet.runtime.ir.graph import Value
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.elementwise import Add, Cast, Gelu
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model

from .dry import DryDevice, Net, launches, normal, planned_model
from .emulator import needs_compiler
from .samples import ERROR, Sample, compare, sample, samples

PLACES = ("before", "behind")
#: To which type a Cast converts.
OTHER = {float16: float32, float32: float16}


def along(axis: int) -> Callable[[Net, Value], Value]:
    """Return what adds one number for each place along an axis, if there is this one."""

    def bias(net: Net, x: Value) -> Value:
        dims = x.tensor.dims
        sizes, place = [1] * len(dims), axis if axis < len(dims) else 0
        sizes[place] = dims[place]
        return net.apply(Add(), x, normal(*sizes).astype(x.tensor.dtype))

    return bias


def activation(net: Net, x: Value) -> Value:
    return net.apply(Gelu(), x)


def residual(net: Net, x: Value) -> Value:
    return net.apply(Add(), x, net.input(*x.tensor.dims, dtype=x.tensor.dtype))


def cast(net: Net, x: Value) -> Value:
    return net.apply(Cast(to=OTHER[x.tensor.dtype]), x)


CHAINS: Mapping[str, Callable[[Net, Value], Value]] = {
    **{"channels": along(1), "columns": along(-1)},
    **{"activation": activation, "residual": residual, "cast": cast},
}


def is_float(value: Value) -> bool:
    """Whether a value is a tensor of floats with axes of known sizes."""
    known = isinstance(value.type, TensorType) and value.type.is_static
    return known and value.tensor.dtype in OTHER and bool(value.tensor.dims)


def ordinary() -> tuple[Sample, ...]:
    """Return samples of operators of which others are of rare forms."""
    image, rows = normal(2, 8, 12, 16), normal(6, 64)
    integers = np.arange(96, dtype=np.int8).reshape(6, 16)
    return (
        sample("MatMul", [normal(5, 24, 32), normal(32, 16)], (1,)),
        sample("Softmax", [rows]),
        sample("Softmax", [rows.astype(float16)]),
        sample("Transpose", [image.astype(float16)], perm=(0, 2, 3, 1)),
        sample("Slice", [image, np.array([2]), np.array([6]), np.array([1])], (1, 2, 3)),
        sample("Concat", [image, image], axis=1),
        sample("Expand", [normal(2, 8, 1, 16), np.array(image.shape)], (1,)),
        sample("DequantizeLinear", [integers, np.float32(0.1)], (1,)),
        sample("QuantizeLinear", [rows, np.float32(0.1), np.int8(0)], (1, 2)),
    )


@cache
def operators() -> Mapping[str, tuple[Sample, ...]]:
    """Return the samples of each operator that a plan may contain."""
    found = dict[str, tuple[Sample, ...]]()
    for each in (*samples(), *ordinary()):
        (node,) = each.graph.nodes
        if all(isinstance(v.type, TensorType) and v.type.is_static for v in node.outputs):
            found[node.kind] = (*found.get(node.kind, ()), each)
    return found


def network(sample: Sample, place: str = "", *chains: str) -> Net | None:
    """Return the node of a sample, with chains at a place; None if it has no floats there.

    Args:
        sample: the node with its operands.
        place: "before" or "behind".
        chains: those of `CHAINS` in the order of the nodes.
    """
    (node,) = sample.graph.nodes
    net, values = Net(), dict[Value, Value]()
    given = (value for value in node.distinct_reads if value.data is None)
    first = next(filter(is_float, given), None)
    if (place == "before" and first is None) or (place == "behind" and not is_float(node.output)):
        return None
    for value in node.distinct_reads:
        if value.data is not None:
            values[value] = net.graph.constant(value.data)
            continue
        dtype, own = value.tensor.dtype, chains if place == "before" and value is first else ()
        read = OTHER[dtype] if "cast" in own else dtype
        values[value] = net.input(*value.tensor.dims, dtype=read)
        net.feeds[values[value].name] = sample.feeds[value.name].astype(read)
        for chain in own:
            values[value] = CHAINS[chain](net, values[value])
    inputs = [value and values[value] for value in node.inputs]
    made = net.graph.insert(node.op, inputs, len(node.outputs))
    net.outputs(*made.outputs)
    y, *others = made.outputs
    for chain in chains if place == "behind" else ():
        y = CHAINS[chain](net, y)
    net.outputs(y, *others)
    return net


def count(net: Net | None) -> int:
    """Return the number of launches of a network's plan."""
    assert net is not None
    options = Options(skip=("fold_constants",))
    with Model(net.graph, [NumpyBackend()], options, evaluate) as model:
        return len(launches(planned_model(model, DryDevice())))


@cache
def alone(operator: str) -> tuple[int, ...]:
    """Return the number of launches of each sample of an operator."""
    return tuple(count(network(each)) for each in operators()[operator])


def apart(operator: str, place: str) -> set[str]:
    """Return the chains that the kernel of none of its samples takes; empty without floats."""
    left, given = set(CHAINS), False
    for each, own in zip(operators()[operator], alone(operator), strict=True):
        nets = {chain: network(each, place, chain) for chain in left}
        given = given or any(nets.values())
        left -= {chain for chain, net in nets.items() if net is not None and count(net) <= own}
    return left if given else set()


ALL = "channels columns activation residual cast"
#: The chains before operators that are launches of their own.
BEFORE: Mapping[str, str] = {
    ALL: """
        AffineGrid ArgMax ArgMin Attention AveragePool BatchNormalization BitCast
        CausalConvWithState CenterCropPad Col2Im Compress Conv ConvTranspose DeformConv
        DepthToSpace DequantizeLinear Dropout DynamicQuantizeLinear Einsum Expand EyeLike GRU Gather
        GatherElements GatherND Gemm GlobalLpPool GridSample GroupNormalization Hardmax
        InstanceNormalization LRN LSTM LayerNormalization LinearAttention LpNormalization LpPool
        MaxPool MaxRoiPool MaxUnpool MeanVarianceNormalization NegativeLogLikelihoodLoss OneHot Pad
        QLinearConv RMSNormalization RNN RandomNormalLike Resize ReverseSequence RoiAlign
        RotaryEmbedding STFT ScatterElements ScatterND Slice SoftmaxCrossEntropyLoss SpaceToDepth
        Split TensorScatter Tile TopK Trilu ai.onnx.preview.training::Adagrad
        ai.onnx.preview.training::Adam ai.onnx.preview.training::Momentum com.microsoft::CDist
        com.microsoft::Inverse
    """,
    "channels columns activation residual": "DFT",
    "channels activation residual": "MatMul",
    "cast": "GlobalMaxPool",
}
#: The same behind them.
BEHIND: Mapping[str, str] = {
    ALL: """
        AffineGrid Attention CausalConvWithState CenterCropPad Col2Im Compress Concat DFT DeformConv
        DepthToSpace Det Dropout EyeLike GRU GatherElements GatherND GlobalLpPool GridSample Hardmax
        LRN LSTM LinearAttention LpNormalization LpPool MaxRoiPool MaxUnpool
        MeanVarianceNormalization MelWeightMatrix OneHot RNN RandomNormalLike ReverseSequence
        RoiAlign RotaryEmbedding STFT ScatterElements ScatterND SoftmaxCrossEntropyLoss SpaceToDepth
        Split TensorScatter TfIdfVectorizer TopK Trilu ai.onnx.preview.training::Adagrad
        ai.onnx.preview.training::Adam ai.onnx.preview.training::Momentum com.microsoft::CDist
        com.microsoft::Inverse
    """,
    "channels columns activation cast": "Expand",
    "columns": """
        AveragePool BatchNormalization Conv ConvTranspose GroupNormalization InstanceNormalization
        MaxPool Resize
    """,
    "channels": "Einsum MatMul RMSNormalization",
    "residual": "Slice",
}


def listed(operator: str, place: str) -> set[str]:
    """Return the chains at a place that the tables list for an operator."""
    table = BEFORE if place == "before" else BEHIND
    return {
        chain
        for chains, kinds in table.items()
        if operator in kinds.split()
        for chain in chains.split()
    }


@pytest.mark.parametrize("operator", sorted(operators()))
@pytest.mark.parametrize("place", PLACES)
def test_a_kernel_takes_what_is_around_it(place: str, operator: str) -> None:
    assert apart(operator, place) == listed(operator, place)


#: Operators and places where a kernel takes some chains, with these.
TAKEN = [
    (operator, place, tuple(chain for chain in CHAINS if chain not in listed(operator, place)))
    for operator in sorted(operators())
    for place in PLACES
    if listed(operator, place) != set(CHAINS)
]


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(("operator", "place", "chains"), TAKEN)
def test_results(operator: str, place: str, chains: tuple[str, ...], emulated: CudaBackend) -> None:
    ordered = sorted(chains, key=lambda chain: (chain == "cast") == (place == "behind"))
    for each in operators()[operator]:
        net = network(each, place, *ordered)
        if net is not None:
            compare(Sample(net.graph, net.feeds), emulated, error=ERROR[float16])
