"""Convolutions of 16 bits, and how what follows any is divided; needs no cuDNN."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import float16
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.op import Op
from tercet.runtime.ops.conv import Conv, ConvTranspose
from tercet.runtime.ops.elementwise import (
    Clip,
    Elu,
    Gelu,
    LeakyRelu,
    Mish,
    Mod,
    Mul,
    Relu,
    Sigmoid,
    Swish,
    Tan,
    Tanh,
)
from tercet.runtime.plan.backend import BuildContext
from tercet.runtime.plan.format import Format
from tercet.tools.workshop.convolution_cases import ConvolutionCase

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.driver.compile import Compiler
from tercet.backends.cuda.recipe.operands import Packed
from tercet.backends.cuda.recipe.targets import H200
from tercet.backends.cudnn.backend import NodeGroup
from tercet.backends.cudnn.choice import EngineTask
from tercet.backends.cudnn.operation import Operand
from tercet.backends.cudnn.prepack import front_launch
from tercet.backends.cudnn.stages import FLOW, PointwiseStage, expressible

from .graphs import NOTHING, conv, start, surveyed, then


def half(
    op: Conv | ConvTranspose, x: tuple[int, ...], w: tuple[int, ...], **extras: bool
) -> ConvolutionCase:
    return ConvolutionCase(op, x, w, dtype=float16, **extras)


def wanted(graph: Graph, **options: Any) -> NodeGroup:
    (found,) = surveyed(graph, **options)
    assert isinstance(found, NodeGroup), found
    return found


def ways(found: NodeGroup) -> list[tuple[str, str]]:
    return [(way.operation.title, way.rest.title) for way in found.task.divisions]


def test_halves_lie_channels_last_and_may_be_slices() -> None:
    case = half(Conv(), (1, 16, 8, 8), (8, 16, 3, 3), bias=True, add=True, relu=True)
    graph = case.graph()
    found = wanted(graph)
    assert {*found.formats.wants.values(), *found.formats.gives.values()} == {Format.CHANNELS_LAST}
    assert {v.name for v in found.formats.pitched} == {"x", "z", "relu"}
    values = {v.name: v for v in found.formats.pitched}
    pitches = {values["x"]: 48, values["relu"]: 24}
    assert found.at is not None
    task = found.at(BuildContext(found.nodes, (), (), {}, NOTHING, pitches))
    assert isinstance(task, EngineTask)
    strides = {role: o.strides for role, o in task.operands.items()}
    assert strides["x"] == (8 * 8 * 48, 1, 8 * 48, 48)
    assert strides["y"] == (6 * 6 * 24, 1, 6 * 24, 24)
    assert strides["z"] == (6 * 6 * 8, 1, 6 * 8, 8)
    assert task != found.task


@pytest.mark.parametrize("axes", [1, 2])
def test_a_single_number_a_picture_is_still_read_channels_last(axes: int) -> None:
    """Its own order in memory is either format, that of the image is not."""
    case = half(Conv(), (2, 64, *(4,) * axes), (1, 64, *(4,) * axes))
    found = wanted(case.graph())
    assert found.formats.wants == {found.nodes[0].distinct_reads[0]: Format.CHANNELS_LAST}
    assert found.formats.gives == {found.nodes[0].output: Format.CHANNELS_LAST}


def test_groups_that_meet_padding_alone_are_not_compiled_by_cudnn() -> None:
    """Seen on an H200: infinities by an engine that cuDNN compiled."""
    case = half(Conv(dilations=(3,), group=3, pads=(1, 3)), (1, 12, 1), (9, 4, 1), bias=True)
    found = wanted(case.graph())
    assert ways(found) == [("conv+bias", ""), ("conv", "bias")]
    for way in found.task.divisions:
        assert "RUNTIME_COMPILATION" in way.operation.notes
    within = replace(case, op=replace(case.op, pads=(0, 0)))
    found = wanted(within.graph())
    assert ways(found)[0] == ("conv+bias", "")
    assert "RUNTIME_COMPILATION" not in found.task.divisions[0].operation.notes


@pytest.mark.parametrize(("channels", "word"), [(1, 4), (3, 4), (5, 8)])
def test_a_first_layer_gets_channels_of_zeros(channels: int, word: int) -> None:
    case = half(Conv(strides=(2, 2)), (2, channels, 9, 9), (8, channels, 3, 3), relu=True)
    found = wanted(case.graph())
    x, w = found.nodes[0].distinct_reads
    assert found.formats.wants == {x: Format.CONTIGUOUS}
    assert x not in found.formats.pitched
    assert found.task.operands["x"] == Operand.of((2, channels, 9, 9), float16)
    for way in found.task.divisions:
        assert way.operation.operands["x"].dims == (2, word, 9, 9)
        assert way.front is not None
        assert way.front.nbytes == -(-2 * word * 81 * 2 // 256) * 256
        launch = front_launch(way.front)
        assert launch.scratch <= way.front.nbytes
        assert Compiler(H200).code(launch.source)
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
    assert found.formats.wants == {found.nodes[0].distinct_reads[0]: Format.CHANNELS_LAST}
    assert found.task.divisions[0].front is None
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
    whole = found.task.divisions[0].operation
    assert whole.title == "conv+bias+mul+clip"
    assert list(whole.operands) == ["x", "w", "bias", "y"]
    assert "Mul()(·, 0.5), Clip()(·, 0.0, 6.0)" in str(whole)


@pytest.mark.parametrize(
    ("stage", "possible"),
    [
        (PointwiseStage(Clip(), (FLOW, 0.0, 6.0)), True),
        (PointwiseStage(Clip(), (FLOW, None, 6.0)), True),
        (PointwiseStage(Clip(), (FLOW, "low")), False),
        (PointwiseStage(Clip(), (FLOW, 1.0, 0.5)), False),
        (PointwiseStage(Elu(alpha=0.5), (FLOW,)), True),
        (PointwiseStage(Mod(fmod=1), (FLOW, 2.0)), True),
        (PointwiseStage(Mod(), (FLOW, 2.0)), False),
        (PointwiseStage(Tan(), (FLOW,)), False),
    ],
    ids=str,
)
def test_what_cudnn_has_words_for(stage: PointwiseStage, possible: bool) -> None:
    assert expressible(stage) == possible


def test_thin_groups_are_divided_otherwise() -> None:
    whole, apart = ("conv+bias+relu", ""), ("conv", "bias+relu")
    for channels, order in ((1, [apart, whole]), (32, [whole, apart])):
        shapes = (1, 8 * channels, 9, 9), (8 * channels, channels, 3, 3)
        case = ConvolutionCase(Conv(group=8), *shapes, bias=True, relu=True)
        assert ways(wanted(case.graph())) == order
        found = wanted(replace(case, dtype=float16).graph())
        assert ways(found) == [whole, *order], "a kernel that cuDNN writes comes first"


def test_transposed_convolutions_are_left_alone() -> None:
    case = half(ConvTranspose(), (1, 8, 9, 9), (8, 8, 3, 3), bias=True, relu=True)
    assert ways(wanted(case.graph())) == [("dgrad", "bias+relu")]
