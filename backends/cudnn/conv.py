"""Convolutions, plain and transposed, with their elementwise epilogues."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from ...runtime.ir.dtypes import float32, name_of
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.types import Array
from ...runtime.ops.conv import Conv, ConvTranspose
from ...runtime.ops.elementwise import (
    Abs,
    Add,
    Clip,
    Elu,
    Gelu,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    Mul,
    Neg,
    PRelu,
    Relu,
    Sub,
    Sum,
    Swish,
    Tanh,
)
from ...runtime.ops.window import transposed_window, window
from ...runtime.options import Options, Precision
from ...runtime.plan.backend import BuildContext, Formats
from ...runtime.plan.format import Format
from ..cuda.recipe.operands import Ints, Packed
from .choice import Division, EngineTask
from .convolution import Convolution
from .operation import HALVES, NO_PITCHES, Operand, times
from .prepack import Front
from .registry import NodeGroup, Source, claims
from .stages import FLOW, Followed, PointwiseStage, Tail, expressible, follow

#: Channels per group below which cuDNN's engines with an epilogue are slow: on an H200, depthwise
#: 3x3 over 32x128x28x28 takes 18 us without and 62 us with bias and ReLU, 32 groups of 4 channels
#: take 10 and 23 us, 2 groups of 48 take 33 us either way.
THIN = 16
#: Numbers of channels to which images with fewer are padded with zeros, in 16-bit floats.
PADDED = (4, 8)


# ── a node in cuDNN's terms ──────────────────────────────────────────────────────────────────────


def describe(
    node: Node,
    precision: Precision = "float32",
    pitches: Mapping[Value, int] = NO_PITCHES,
    format: Format | None = None,
    limit: int | None = None,
) -> Convolution | str:
    """Return the cuDNN convolution for a Conv or ConvTranspose node, or why there is none.

    In float32, cuDNN is fastest on contiguous tensors; tensor cores need channels-last ones.

    Args:
        node: the node.
        precision: see `Options.precision`.
        pitches: of its tensors with gaps.
        format: the format of image, weights and result; the fastest if None.
        limit: maximum workspace in bytes; None for no limit.
    """
    values = [value for value in node.inputs if value is not None]
    wrong = sorted({name_of(v.tensor.dtype) for v in values} - {"float32", "float16", "bfloat16"})
    if wrong:
        return f"dtype {', '.join(wrong)}; float32, float16 and bfloat16 are claimed"
    x, w, y = values[0], values[1], node.output
    axes = len(x.tensor.dims) - 2
    if axes > 3:
        return f"{axes} spatial axes; cuDNN has at most 3"
    if 0 in (*x.tensor.dims, *w.tensor.dims, *y.tensor.dims):
        return "a tensor without elements"
    transposed = isinstance(node.op, ConvTranspose)
    geometry = transposed_window if transposed else window
    found = geometry(node.op, x.tensor.dims[2:], w.tensor.dims[2:])
    # Elements beyond all transposed windows are at the end; cuDNN allows fewer than a stride.
    if any(-pad >= step for pad, step in zip(found.pads_end, found.strides, strict=True)):
        return f"output_padding of a stride ({times(found.strides)}) or more"
    dtype = x.tensor.dtype
    tf32 = dtype == float32 and precision == "tf32"
    format = format or _fastest_format(node, precision)
    front = _front(node, limit) if format is Format.CHANNELS_LAST else None

    def operand(value: Value, dims: Ints) -> Operand:
        if front and value is not y:
            dims = (dims[0], front.channels, *dims[2:])
        dims = _with_axis(dims) if len(dims) == 3 else dims
        return Operand.of(dims, dtype, format, pitches.get(value, 0))

    one = axes == 1
    return Convolution(
        x=operand(x, x.tensor.dims),
        w=operand(w, w.tensor.dims),
        y=operand(y, y.tensor.dims),
        pads_begin=(0,) * one + found.pads_begin,
        pads_end=(0,) * one + tuple(max(pad, 0) for pad in found.pads_end),
        strides=(1,) * one + found.strides,
        dilations=(1,) * one + found.dilations,
        transposed=transposed,
        tf32=tf32,
    )


def _fastest_format(node: Node, precision: Precision) -> Format:
    exact = node.output.tensor.dtype == float32 and precision != "tf32"
    return Format.CONTIGUOUS if exact else Format.CHANNELS_LAST


def _front(node: Node, limit: int | None = None) -> Front | None:
    """Return the packing of the image of a first layer that makes each pixel a word.

    On an H200, 7x7 over 32x3x224x224 float16 takes 196 us unpacked, 109 us on four channels.
    """
    x, w = node.operands[:2]
    dims, dtype = x.tensor.dims, x.tensor.dtype
    constant = w.is_constant and not x.is_constant
    if not isinstance(node.op, Conv) or node.op.group > 1 or dtype not in HALVES or not constant:
        return None
    channels = next((count for count in PADDED if dims[1] <= count), dims[1])
    if channels == dims[1] or prod(dims) // dims[1] >= 2**31:
        return None
    image = Operand.of(_with_axis(dims) if len(dims) == 3 else dims, dtype)
    front = Front("x", image, channels)
    return front if limit is None or front.nbytes <= limit else None


def _with_axis(dims: Ints) -> Ints:
    """Return `dims` with an axis of size 1 inserted before the only spatial one."""
    return (*dims[:2], 1, *dims[2:])


# ── divisions ────────────────────────────────────────────────────────────────────────────────────


def divide(convolution: Convolution, tail: Tail, zeros: Operand | None) -> tuple[Division, ...]:
    """Return the possible divisions of a convolution and its epilogue, best guess first.

    In float32, cuDNN's engines for most activations take ten times as long as those for ReLU, or
    round to TF32, so a kernel applies these activations. On tensor cores, cuDNN generates kernels
    for any activation; for transposed convolutions it does not, or compiles for a second.

    Generated kernels come first for several groups, where others are far slower (Swish over
    4x128x28x28 in two groups: 5 us against 28), and for cheap tails; over three axes they are slow.

    Args:
        convolution: its own epilogue is empty.
        tail: the epilogue.
        zeros: a bias of zeros, if available: every engine that adds a residual or clips also adds a
            bias.
    """
    alone = Division(convolution, tail)
    if not tail or convolution.transposed:
        return (alone,)
    first, last = tail.cut(_classic(tail))
    biased = _biased(first, zeros)
    divisions = [Division(replace(convolution, epilogue=biased), last)] if biased else []
    exact = convolution.y.dtype == float32 and not convolution.tf32
    thin = convolution.group > 1 and convolution.thinnest < (THIN if exact else 2)
    divisions.insert(0 if thin else len(divisions), alone)
    if not exact and not convolution.is_fragile and all(map(expressible, tail.stages)):
        written = Division(replace(convolution, epilogue=tail, written=True))
        flat = len(convolution.y.dims) == 4 and bool(last) and all(map(_is_cheap, last.stages))
        divisions.insert(0 if flat or convolution.group > 1 else 1, written)
    return tuple(divisions)


#: Operators that kernels generated by cuDNN apply at almost no cost. On an H200, 3x3 over
#: 32x64x56x56 float16 and Swish takes 24 us in one kernel, 32 us in two, Tanh 23 and 30; but
#: Sigmoid 40 and 32, Gelu by erf 34 and 30.
CHEAP = (
    *(Add, Sum, Sub, Mul, Abs, Neg, Relu, Clip, LeakyRelu, PRelu, HardSigmoid, HardSwish),
    *(Swish, Tanh),
)


def _is_cheap(stage: PointwiseStage) -> bool:
    op = stage.op
    if isinstance(op, Elu):
        return op.alpha == 1
    return isinstance(op, CHEAP) or (isinstance(op, Gelu) and op.approximate == "tanh")


def _classic(tail: Tail) -> int:
    """Return the number of leading stages that are a residual, a bias and ReLU, in this order."""
    place = 0
    for fits in (_adds_residual, _adds_bias, lambda stage: isinstance(stage.op, Relu)):
        if place < len(tail.stages) and fits(tail.stages[place]):
            place += 1
    return place


def _adds_bias(stage: PointwiseStage) -> bool:
    return isinstance(stage.op, Add) and stage.roles == ("bias",)


def _adds_residual(stage: PointwiseStage) -> bool:
    return isinstance(stage.op, Add | Sum) and len(stage.inputs) == 2 and stage.roles == ("z",)


def _biased(tail: Tail, zeros: Operand | None) -> Tail | None:
    """Return the classic stages with a bias of zeros added; None if that does not apply."""
    if not tail or any(map(_adds_bias, tail.stages)):
        return tail or None
    if zeros is None:
        return None
    place = int(_adds_residual(tail.stages[0]))
    stages = [*tail.stages[:place], PointwiseStage(Add(), (FLOW, "zeros")), *tail.stages[place:]]
    return Tail.of(stages, {**dict(tail.operands), "zeros": zeros})


# ── the family ───────────────────────────────────────────────────────────────────────────────────


@claims(Conv, ConvTranspose)
def convolution(graph: Graph, node: Node, free: Set[Node], options: Options) -> NodeGroup | str:
    """Return a convolution with its elementwise epilogue."""
    found = describe(node, options.precision, limit=options.workspace)
    if isinstance(found, str):
        return found
    pattern = ConvPattern(node, follow(graph, node.output, free), options)
    return NodeGroup(
        nodes=pattern.nodes,
        task=pattern.task(found),
        reads=pattern.reads(found),
        gives={"y": pattern.y},
        formats=pattern.formats(found),
        at=pattern.at,
    )


class ConvPattern(Followed):
    """A convolution and the nodes fused into its step."""

    def task(
        self, convolution: Convolution, pitches: Mapping[Value, int] = NO_PITCHES
    ) -> EngineTask:
        """Return the engine task for tensors with these pitches."""
        y = convolution.y
        channels = Operand.of((1, y.dims[1]) + (1,) * (len(y.dims) - 2), y.dtype)
        operands = dict.fromkeys(("bias", *self.followers.across), channels)
        for role, value in self.followers.along.items():
            operands[role] = Operand.of(y.dims, y.dtype, y.layout[0], pitches.get(value, 0))
        stages = list(self.followers.stages)
        if self.added is not None:  # cuDNN's engines need the residual first
            place = int(bool(stages) and _adds_residual(stages[0]))
            stages.insert(place, PointwiseStage(Add(), (FLOW, "bias")))
        zeros = channels if self.node.operands[1].is_constant else None
        divisions = divide(convolution, Tail.of(stages, operands), zeros)
        if self._is_packed(convolution):
            divisions = tuple(replace(division, front=_front(self.node)) for division in divisions)
        return EngineTask(divisions, self.options.workspace)

    def _is_packed(self, convolution: Convolution) -> bool:
        """Whether the image is padded to more channels than the input has."""
        return convolution.x.dims[1] != self.node.distinct_reads[0].tensor.dims[1]

    def at(self, site: BuildContext) -> EngineTask | str:
        """Return the task for tensors with the given layouts."""
        pitches = self.pitches(site)
        limit = self.options.workspace
        found = describe(self.node, self.options.precision, pitches, limit=limit)
        return found if isinstance(found, str) else self.task(found, pitches)

    def reads(self, convolution: Convolution) -> dict[str, Source]:
        """The tensors read, by role."""
        x, w = self.node.operands[:2]
        reads: dict[str, Source] = {"x": _laid(x, convolution.x), "w": _laid(w, convolution.w)}
        if self.added is not None:
            reads["bias"] = self.added
        if w.is_constant:
            pack = partial(_zeros, count=convolution.y.dims[1])
            reads["zeros"] = Packed((w,), ("cudnn", "no bias", convolution.y.dims[1]), pack)
        return reads | {**self.followers.across, **self.followers.along}

    def formats(self, convolution: Convolution) -> Formats:
        """The physical formats of inputs and outputs."""
        format = _fastest_format(self.node, self.options.precision)
        if format is Format.CONTIGUOUS:
            return Formats()
        x, w = self.node.operands[:2]
        wants = dict.fromkeys((x, w, *self.followers.along.values()), format)
        pitched = {x, self.y, *self.followers.along.values()}
        if self._is_packed(convolution):
            wants[x] = Format.CONTIGUOUS
            pitched.discard(x)
        computed = {value: format for value, format in wants.items() if not value.is_constant}
        pitched = frozenset(value for value in pitched if not value.is_constant)
        return Formats(computed, {self.y: format}, pitched=pitched)


def _laid(value: Value, operand: Operand) -> Source:
    """Return a value; constants are returned packed in the operand's layout."""
    if not value.is_constant or operand.layout == (Format.CONTIGUOUS, 0):
        return value
    channels = operand.dims[1]
    return Packed((value,), ("cudnn", "last", channels), partial(_last, channels=channels))


def _last(data: Array, channels: int) -> Array:
    """Return images or weights zero-padded to this number of channels, channels innermost."""
    widths = [(0, channels - n if axis == 1 else 0) for axis, n in enumerate(data.shape)]
    return np.ascontiguousarray(np.moveaxis(np.pad(data, widths), 1, -1))


def _zeros(weights: Array, count: int) -> Array:
    return np.zeros(count, weights.dtype)
