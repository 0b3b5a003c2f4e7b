"""Which nodes cuDNN claims together, which it leaves, and what it says; needs no cuDNN."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import float16, float32, float64
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.conv import Conv, ConvTranspose
from tercet.runtime.ops.elementwise import (
    Abs,
    Add,
    Neg,
    Relu,
    Sigmoid,
    Sum,
    Where,
)
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.pool import MaxPool
from tercet.runtime.ops.shape import Flatten
from tercet.runtime.options import Options
from tercet.runtime.plan.backend import BuildContext, Claim, Decline
from tercet.runtime.plan.format import Format
from tercet.tools.workshop.convolution_cases import ConvolutionCase

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cudnn.backend import CudnnBackend, NodeGroup
from tercet.backends.cudnn.choice import EngineChoice, EngineTask
from tercet.backends.cudnn.conv import describe
from tercet.backends.cudnn.convolution import Convolution
from tercet.backends.cudnn.library import NoPlan

from .graphs import NOTHING, claims, conv, declines, start, surveyed, then


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("add", [True, False])
@pytest.mark.parametrize("relu", [True, False])
def test_a_convolution_takes_what_follows(bias: bool, add: bool, relu: bool) -> None:
    case = ConvolutionCase(Conv(), (1, 4, 8, 8), (4, 4, 3, 3), bias, add, relu)
    expected = "+".join(["Conv", *(["Add"] * add), *(["Relu"] * relu)])
    assert claims(case.graph()) == [expected]
    (found,) = surveyed(case.graph())
    assert isinstance(found, NodeGroup)
    whole = found.task.divisions[0]
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


def test_a_condition_is_no_number_of_a_tail() -> None:
    graph, x = start(dtype=float16)
    yes = graph.constant(np.array(True))
    a, z = conv(graph, x, "a", dtype=float16), then(graph, Abs(), x)
    graph.set_outputs({"y": then(graph, Where(), yes, a, z)})
    assert claims(graph) == ["Conv"]


def test_computed_weights_without_bias_have_no_zeros_either() -> None:
    graph, x = start()
    w = graph.add_input("w", TensorType(float32, (4, 4, 3, 3)))
    graph.set_outputs({"y": then(graph, Relu(), then(graph, Conv(), x, w))})
    (found,) = surveyed(graph)
    assert isinstance(found, NodeGroup)
    assert [way.rest.title for way in found.task.divisions] == ["relu"]


def test_every_other_node_has_a_reason() -> None:
    graph, x = start()
    a = then(graph, Sigmoid(), then(graph, MaxPool(kernel_shape=(1, 1)), x), name="sigmoid")
    pooled = then(graph, MaxPool(kernel_shape=(2, 2)), a, name="pool")
    flat = then(graph, Flatten(), pooled, name="flat")
    graph.set_outputs({"y": then(graph, Softmax(), flat, name="softmax")})
    reasons = declines(graph)
    assert not {"pool", "softmax"} - set(reasons)
    assert "flat" not in reasons, "the planner itself does views"
    assert reasons["pool"] == "no cuDNN graph starts with MaxPool"


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
    graph = ConvolutionCase(op, x, w).graph()
    assert reason in str(describe(graph.nodes[0], "float32"))


def test_other_dtypes_are_declined() -> None:
    graph, x = start(dtype=float64)
    graph.set_outputs({"y": conv(graph, x, "a", dtype=float64)})
    assert declines(graph) == {"a": "dtype float64; float32, float16 and bfloat16 are claimed"}


class Refuses:
    """A chooser that finds nothing."""

    session = SimpleNamespace(vendor=SimpleNamespace(version="9.19.0"), target="NVIDIA H200 sm_90")

    def choose(self, task: EngineTask, judge: object, *, tune: bool) -> EngineChoice:
        raise NoPlan(f"{task.divisions[-1].operation}: 36 plans: 36 need more workspace")


def test_cudnns_own_no_becomes_a_decline() -> None:
    graph = ConvolutionCase(Conv(), (1, 4, 8, 8), (4, 4, 3, 3), relu=True).graph()
    chooser: Any = Refuses()
    (claim,) = CudnnBackend(NOTHING, chooser).claim(graph, frozenset(graph.nodes), Options())
    assert isinstance(claim, Claim)
    refused = claim.build(BuildContext(claim.nodes, (), (), {}, NOTHING))
    assert isinstance(refused, Decline)
    assert refused.node is graph.nodes[0], "what follows the convolution may still be claimed"
    assert refused.reason == (
        "cuDNN 9.19.0 on NVIDIA H200 sm_90 has no engine: conv x 1x4x8x8 float32 w 4x4x3x3 float32 "
        "y 1x4x6x6 float32 pads 0x0:0x0 strides 1x1 dilations 1x1: 36 plans: 36 need more workspace"
    )


def test_float32_is_plain_and_without_tensor_cores() -> None:
    graph = ConvolutionCase(Conv(), (1, 4, 8, 8), (4, 4, 3, 3)).graph()
    (found,) = surveyed(graph)
    assert isinstance(found, NodeGroup)
    assert "TENSOR_CORE" in found.task.divisions[0].operation.notes
    assert not found.formats.wants
    assert not found.formats.gives


def test_tf32_wants_channels_last() -> None:
    case = ConvolutionCase(Conv(), (1, 4, 8, 8), (4, 4, 3, 3), bias=True, add=True, relu=True)
    (found,) = surveyed(case.graph(), precision="tf32")
    assert isinstance(found, NodeGroup)
    formats = found.formats
    assert {v.name for v in formats.wants} == {"x", "z"}
    assert {v.name for v in formats.gives} == {"relu"}
    assert {*formats.wants.values(), *formats.gives.values()} == {Format.CHANNELS_LAST}
    operation = found.task.divisions[0].operation
    assert operation.operands["x"].strides == (256, 1, 32, 4)
    assert "TENSOR_CORE" not in operation.notes


def test_one_axis_becomes_the_second_of_two() -> None:
    op = Conv(pads=(2, 1), strides=(2,), dilations=(3,))
    found = describe(ConvolutionCase(op, (1, 4, 20), (6, 4, 3)).graph().nodes[0], "float32")
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
    found = describe(ConvolutionCase(op, x, w).graph().nodes[0], "float32")
    assert isinstance(found, Convolution)
    assert (found.group, found.thinnest) == (group, thinnest)


def test_a_convolution_of_an_image_with_itself() -> None:
    graph, x = start(1, float16)
    graph.set_outputs({"y": then(graph, Relu(), then(graph, Conv(), x, x))})
    assert claims(graph) == ["Conv+Relu"]
