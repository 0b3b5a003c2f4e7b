"""Which nodes cuDNN claims together, which it leaves, and what it says; needs no cuDNN."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tercet.runtime.backend import Claim, Decline, Format, Site
from tercet.runtime.dtypes import DType, float16, float32, float64
from tercet.runtime.infer import infer
from tercet.runtime.ir import Graph, Value
from tercet.runtime.op import Op
from tercet.runtime.ops.conv import Conv, ConvTranspose
from tercet.runtime.ops.elementwise import (
    Abs,
    Add,
    Clip,
    Elu,
    Gelu,
    LeakyRelu,
    Mish,
    Mod,
    Mul,
    Neg,
    Relu,
    Sigmoid,
    Sum,
    Swish,
    Tan,
    Tanh,
)
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.pool import MaxPool
from tercet.runtime.ops.shape import Flatten
from tercet.runtime.options import Options
from tercet.runtime.types import TensorType
from tercet.tools.convolution_cases import Case

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.compile import H200, Compiler
from tercet.backends.cuda.launch import Packed
from tercet.backends.cudnn.backend import CudnnBackend, Wanted, survey
from tercet.backends.cudnn.choice import Choice, Task
from tercet.backends.cudnn.conv import describe
from tercet.backends.cudnn.convolution import Convolution
from tercet.backends.cudnn.front import front_launch
from tercet.backends.cudnn.operation import Operand
from tercet.backends.cudnn.stages import FLOW, Stage, expressible
from tercet.backends.cudnn.vendor import NoPlan

#: Stands for a GPU, and for what lies on it, where nothing is done with it.
NOTHING: Any = None


def surveyed(graph: Graph, **options: Any) -> list[Wanted | Decline]:
    infer(graph)
    return list(survey(graph, frozenset(graph.nodes), Options(**options)))


def claims(graph: Graph, **options: Any) -> list[str]:
    """Return what is taken together with convolutions."""
    found = [w for w in surveyed(graph, **options) if isinstance(w, Wanted)]
    found = [w for w in found if isinstance(w.nodes[0].op, Conv | ConvTranspose)]
    return ["+".join(node.kind for node in w.nodes) for w in found]


def declines(graph: Graph) -> dict[str, str]:
    found = [d for d in surveyed(graph) if isinstance(d, Decline)]
    return {d.node.name: d.reason for d in found}


def start(channels: int = 4, dtype: DType = float32) -> tuple[Graph, Value]:
    graph = Graph()
    return graph, graph.add_input("x", TensorType(dtype, (1, channels, 8, 8)))


def conv(graph: Graph, x: Value, name: str, *, bias: bool = True, dtype: DType = float32) -> Value:
    w = graph.constant(np.ones((4, 4, 3, 3), dtype), f"{name}.w")
    b = [graph.constant(np.ones(4, dtype), f"{name}.b")] if bias else []
    return graph.insert(Conv(pads=(1, 1, 1, 1)), [x, w, *b], name=name).output


def then(graph: Graph, op, *inputs: Value, name: str | None = None) -> Value:
    return graph.insert(op, inputs, name=name).output


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("add", [True, False])
@pytest.mark.parametrize("relu", [True, False])
def test_a_convolution_takes_what_follows(bias: bool, add: bool, relu: bool) -> None:
    case = Case(Conv(), (1, 4, 8, 8), (4, 4, 3, 3), bias, add, relu)
    expected = "+".join(["Conv", *(["Add"] * add), *(["Relu"] * relu)])
    assert claims(case.graph()) == [expected]
    (found,) = surveyed(case.graph())
    assert isinstance(found, Wanted)
    whole = found.task.ways[0]
    assert not whole.rest
    names = [*(["add"] * add), *(["bias"] * (bias or add or relu)), *(["relu"] * relu)]
    assert whole.operation.title == "+".join(["conv", *names])
    assert ("zeros" in whole.operation.operands) == (not bias and (add or relu))


@pytest.mark.parametrize("add", [Add(), Sum()])
def test_a_bottleneck_adds_once(add: Op) -> None:
    graph, x = start()
    a = then(graph, Relu(), conv(graph, x, "a"), name="a.relu")
    b = conv(graph, a, "b")
    shortcut = conv(graph, x, "shortcut")
    y = then(graph, Relu(), then(graph, add, b, shortcut, name="sum"), name="out")
    graph.set_outputs({"y": y})
    assert claims(graph) == ["Conv+Relu", f"Conv+{type(add).__name__}+Relu", "Conv"]


def test_a_tail_reads_two_tensors_at_most() -> None:
    graph, x = start()
    y = then(
        graph,
        Sum(),
        conv(graph, x, "a"),
        x,
        then(graph, Abs(), x),
        then(graph, Neg(), x),
        name="sum",
    )
    graph.set_outputs({"y": y})
    assert claims(graph) == ["Conv"]


def test_what_others_read_is_not_fused_away() -> None:
    graph, x = start()
    a = conv(graph, x, "a")
    y = then(graph, Relu(), a)
    graph.set_outputs({"y": y, "a": a})
    assert claims(graph) == ["Conv"]


def test_a_result_added_to_itself_is_no_residual() -> None:
    graph, x = start()
    a = conv(graph, x, "a")
    graph.set_outputs({"y": then(graph, Add(), a, a, name="double")})
    assert claims(graph) == ["Conv"]


def test_a_residual_that_would_be_broadcast_is_left() -> None:
    graph, x = start()
    z = graph.add_input("z", TensorType(float32, (1, 4, 1, 1)))
    graph.set_outputs({"y": then(graph, Relu(), then(graph, Add(), conv(graph, x, "a"), z))})
    assert claims(graph) == ["Conv"]


def test_computed_weights_without_bias_have_no_zeros_either() -> None:
    graph, x = start()
    w = graph.add_input("w", TensorType(float32, (4, 4, 3, 3)))
    graph.set_outputs({"y": then(graph, Relu(), then(graph, Conv(), x, w))})
    (found,) = surveyed(graph)
    assert isinstance(found, Wanted)
    assert [way.rest.title for way in found.task.ways] == ["relu"]


def test_every_other_node_has_a_reason() -> None:
    graph, x = start()
    a = then(graph, Sigmoid(), then(graph, MaxPool(kernel_shape=(1, 1)), x), name="sigmoid")
    pooled = then(graph, MaxPool(kernel_shape=(2, 2)), a, name="pool")
    flat = then(graph, Flatten(), pooled, name="flat")
    graph.set_outputs({"y": then(graph, Softmax(), flat, name="softmax")})
    reasons = declines(graph)
    assert not {"pool", "softmax"} - set(reasons)
    assert "flat" not in reasons, "the planner does views by itself"
    assert reasons["pool"] == "no graph of cuDNN's begins with MaxPool"


@pytest.mark.parametrize(
    ("op", "x", "w", "reason"),
    [
        (Conv(), (1, 2, 5, 5, 5, 5), (2, 2, 3, 3, 3, 3), "4 spatial axes"),
        (Conv(), (0, 2, 5, 5), (2, 2, 3, 3), "without elements"),
        (
            ConvTranspose(output_padding=(2, 2), dilations=(3, 3), strides=(2, 2)),
            (1, 2, 5, 5),
            (2, 2, 3, 3),
            "output_padding of a stride",
        ),
    ],
)
def test_what_cudnn_cannot_express(op, x, w, reason: str) -> None:
    graph = Case(op, x, w).graph()
    assert reason in str(describe(graph.nodes[0], "float32"))


def test_other_dtypes_are_declined() -> None:
    graph, x = start(dtype=float64)
    graph.set_outputs({"y": conv(graph, x, "a", dtype=float64)})
    assert declines(graph) == {"a": "dtype float64; float32, float16 and bfloat16 are claimed"}


class Refuses:
    """A chooser that finds nothing."""

    session = SimpleNamespace(vendor=SimpleNamespace(version="9.19.0"), target="NVIDIA H200 sm_90")

    def choose(self, task: Task, judge: object, *, tune: bool) -> Choice:
        raise NoPlan(f"{task.ways[-1].operation}: 36 plans: 36 want more workspace")


def test_cudnns_own_no_becomes_a_decline() -> None:
    graph = Case(Conv(), (1, 4, 8, 8), (4, 4, 3, 3), relu=True).graph()
    chooser: Any = Refuses()
    (claim,) = CudnnBackend(NOTHING, chooser).claim(graph, frozenset(graph.nodes), Options())
    assert isinstance(claim, Claim)
    refused = claim.build(Site(claim.nodes, (), (), {}, NOTHING))
    assert isinstance(refused, Decline)
    assert refused.node is graph.nodes[0], "what follows the convolution may still be claimed"
    assert refused.reason == (
        "cuDNN 9.19.0 on NVIDIA H200 sm_90 has no engine: conv x 1x4x8x8 float32 w 4x4x3x3 float32 "
        "y 1x4x6x6 float32 pads 0x0:0x0 strides 1x1 dilations 1x1: 36 plans: 36 want more workspace"
    )


def test_float32_is_plain_and_without_tensor_cores() -> None:
    graph = Case(Conv(), (1, 4, 8, 8), (4, 4, 3, 3)).graph()
    (found,) = surveyed(graph)
    assert isinstance(found, Wanted)
    assert "TENSOR_CORE" in found.task.ways[0].operation.notes
    assert not found.formats.wants
    assert not found.formats.gives


def test_tf32_wants_channels_last() -> None:
    case = Case(Conv(), (1, 4, 8, 8), (4, 4, 3, 3), bias=True, add=True, relu=True)
    (found,) = surveyed(case.graph(), precision="tf32")
    assert isinstance(found, Wanted)
    formats = found.formats
    assert {v.name for v in formats.wants} == {"x", "z"}
    assert {v.name for v in formats.gives} == {"relu"}
    assert {*formats.wants.values(), *formats.gives.values()} == {Format.CHANNELS_LAST}
    operation = found.task.ways[0].operation
    assert operation.operands["x"].strides == (256, 1, 32, 4)
    assert "TENSOR_CORE" not in operation.notes


def test_one_axis_becomes_the_second_of_two() -> None:
    op = Conv(pads=(2, 1), strides=(2,), dilations=(3,))
    found = describe(Case(op, (1, 4, 20), (6, 4, 3)).graph().nodes[0], "float32")
    assert isinstance(found, Convolution)
    dims = (found.x.dims, found.w.dims, found.y.dims)
    assert dims == ((1, 4, 1, 20), (6, 4, 1, 3), (1, 6, 1, 9))
    assert (found.pads_begin, found.pads_end) == ((0, 2), (0, 1))
    assert (found.strides, found.dilations) == ((1, 2), (1, 3))


@pytest.mark.parametrize(
    ("op", "x", "w", "group", "thinnest"),
    [
        (Conv(group=4), (1, 4, 8, 8), (8, 1, 3, 3), 4, 1),
        (Conv(group=2), (1, 96, 8, 8), (256, 48, 5, 5), 2, 48),
        (ConvTranspose(group=4), (1, 8, 8, 8), (8, 3, 2, 2), 4, 2),
    ],
)
def test_groups_follow_from_shapes(op, x, w, group: int, thinnest: int) -> None:
    found = describe(Case(op, x, w).graph().nodes[0], "float32")
    assert isinstance(found, Convolution)
    assert (found.group, found.thinnest) == (group, thinnest)


# ── tensor cores ─────────────────────────────────────────────────────────────────────────────────


def half(op: Conv | ConvTranspose, x: tuple[int, ...], w: tuple[int, ...], **extras: bool) -> Case:
    return Case(op, x, w, dtype=float16, **extras)


def wanted(graph: Graph, **options: Any) -> Wanted:
    (found,) = surveyed(graph, **options)
    assert isinstance(found, Wanted), found
    return found


def ways(found: Wanted) -> list[tuple[str, str]]:
    return [(way.operation.title, way.rest.title) for way in found.task.ways]


def test_halves_lie_channels_last_and_may_be_slices() -> None:
    case = half(Conv(), (1, 16, 8, 8), (8, 16, 3, 3), bias=True, add=True, relu=True)
    graph = case.graph()
    found = wanted(graph)
    assert {*found.formats.wants.values(), *found.formats.gives.values()} == {Format.CHANNELS_LAST}
    assert {v.name for v in found.formats.pitched} == {"x", "z", "relu"}
    values = {v.name: v for v in found.formats.pitched}
    pitches = {values["x"]: 48, values["relu"]: 24}
    assert found.at is not None
    task = found.at(Site(found.nodes, (), (), {}, NOTHING, pitches))
    assert isinstance(task, Task)
    strides = {role: o.strides for role, o in task.operands.items()}
    assert strides["x"] == (8 * 8 * 48, 1, 8 * 48, 48)
    assert strides["y"] == (6 * 6 * 24, 1, 6 * 24, 24)
    assert strides["z"] == (6 * 6 * 8, 1, 6 * 8, 8)
    assert task != found.task


@pytest.mark.parametrize(("channels", "word"), [(1, 4), (3, 4), (5, 8)])
def test_a_first_layer_gets_channels_of_zeros(channels: int, word: int) -> None:
    case = half(Conv(strides=(2, 2)), (2, channels, 9, 9), (8, channels, 3, 3), relu=True)
    found = wanted(case.graph())
    x, w = found.nodes[0].reads
    assert found.formats.wants == {x: Format.PLAIN}
    assert x not in found.formats.pitched
    assert found.task.operands["x"] == Operand.of((2, channels, 9, 9), float16)
    for way in found.task.ways:
        assert way.operation.operands["x"].dims == (2, word, 9, 9)
        assert way.front is not None
        assert way.front.nbytes == -(-2 * word * 81 * 2 // 256) * 256
        launch = front_launch(way.front)
        assert launch.scratch <= way.front.nbytes
        assert Compiler(H200).compile(launch.source).get_kernel is not None
    packed = found.reads["w"]
    assert isinstance(packed, Packed)
    assert w.data is not None
    array = packed.pack(w.data)
    assert array.shape == (8, 3, 3, word)
    np.testing.assert_array_equal(array[..., :channels], np.moveaxis(w.data, 1, -1))
    assert not array[..., channels:].any()


def test_without_workspace_a_first_layer_is_read_as_it_lies() -> None:
    case = half(Conv(strides=(2, 2)), (2, 3, 9, 9), (8, 3, 3, 3))
    found = wanted(case.graph(), workspace=0)
    assert found.formats.wants == {found.nodes[0].reads[0]: Format.CHANNELS_LAST}
    assert found.task.ways[0].front is None
    assert found.task.operands["x"].dims == (2, 3, 9, 9)


@pytest.mark.parametrize(
    ("activation", "titles"),
    [
        (Relu(), [("conv+bias+relu", ""), ("conv+bias+relu", ""), ("conv", "bias+relu")]),
        (Swish(), [("conv+bias+swish", ""), ("conv+bias", "swish"), ("conv", "bias+swish")]),
        (
            Sigmoid(),
            [("conv+bias", "sigmoid"), ("conv+bias+sigmoid", ""), ("conv", "bias+sigmoid")],
        ),
        (Mish(), [("conv+bias", "mish"), ("conv+bias+mish", ""), ("conv", "bias+mish")]),
        (Tan(), [("conv+bias", "tan"), ("conv", "bias+tan")]),
    ],
)
def test_activations_are_divided_as_they_are_fast(
    activation: Op, titles: list[tuple[str, str]]
) -> None:
    graph, x = start(dtype=float16)
    graph.set_outputs({"y": then(graph, activation, conv(graph, x, "a", dtype=float16))})
    assert ways(wanted(graph)) == titles


@pytest.mark.parametrize("activation", [Swish(), Sigmoid(), Elu(), Gelu(), LeakyRelu(), Tanh()])
def test_in_float32_a_kernel_applies_most_activations(activation: Op) -> None:
    graph, x = start()
    graph.set_outputs({"y": then(graph, activation, conv(graph, x, "a"))})
    name = type(activation).__name__.lower()
    assert ways(wanted(graph)) == [("conv+bias", name), ("conv", f"bias+{name}")]


def test_limits_and_factors_are_numbers() -> None:
    graph, x = start(dtype=float16)
    low, high, half = (graph.constant(np.asarray(n, float16)) for n in (0, 6, 0.5))
    y = then(graph, Mul(), conv(graph, x, "a", dtype=float16), half)
    graph.set_outputs({"y": then(graph, Clip(), y, low, high)})
    found = wanted(graph)
    whole = found.task.ways[0].operation
    assert whole.title == "conv+bias+mul+clip"
    assert list(whole.operands) == ["x", "w", "bias", "y"]
    assert "Mul()(·, 0.5), Clip()(·, 0.0, 6.0)" in str(whole)


@pytest.mark.parametrize(
    ("stage", "possible"),
    [
        (Stage(Clip(), (FLOW, 0.0, 6.0)), True),
        (Stage(Clip(), (FLOW, None, 6.0)), True),
        (Stage(Clip(), (FLOW, "low")), False),
        (Stage(Elu(alpha=0.5), (FLOW,)), True),
        (Stage(Mod(fmod=1), (FLOW, 2.0)), True),
        (Stage(Mod(), (FLOW, 2.0)), False),
        (Stage(Tan(), (FLOW,)), False),
    ],
    ids=str,
)
def test_what_cudnn_has_words_for(stage: Stage, possible: bool) -> None:
    assert expressible(stage) == possible


def test_thin_groups_are_divided_otherwise() -> None:
    whole, apart = ("conv+bias+relu", ""), ("conv", "bias+relu")
    for channels, order in ((1, [apart, whole]), (32, [whole, apart])):
        shapes = (1, 8 * channels, 9, 9), (8 * channels, channels, 3, 3)
        case = Case(Conv(group=8), *shapes, bias=True, relu=True)
        assert ways(wanted(case.graph())) == order
        found = wanted(replace(case, dtype=float16).graph())
        assert ways(found) == [whole, *order], "a kernel that cuDNN writes comes first"


def test_transposed_convolutions_are_left_alone() -> None:
    case = half(ConvTranspose(), (1, 8, 9, 9), (8, 8, 3, 3), bias=True, relu=True)
    assert ways(wanted(case.graph())) == [("dgrad", "bias+relu")]
