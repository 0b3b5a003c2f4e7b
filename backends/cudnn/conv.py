"""Convolutions as cuDNN sees them, and the nodes behind them that one of its graphs can hold."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

import numpy as np

from ...runtime.backend import Format
from ...runtime.ir import Graph, Node, Value
from ...runtime.ops.conv import ConvTranspose
from ...runtime.ops.elementwise import Add, Relu, Sum
from ...runtime.ops.window import transposed_window, window
from ...runtime.options import Precision
from ..cuda.layout import Ints, strides


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What is done to each element of a convolution's result: ``relu(y + residual + bias[c])``.

    Attributes:
        residual: a tensor of the result's shape is added.
        bias: one number per channel is added.
        relu: negative elements become zero.
    """

    residual: bool = False
    bias: bool = False
    relu: bool = False

    def __bool__(self) -> bool:
        return self.residual or self.bias or self.relu

    def __str__(self) -> str:
        parts = {"add": self.residual, "bias": self.bias, "relu": self.relu}
        return "+".join(name for name, used in parts.items() if used)


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution over two or three spatial axes; a single axis has become the second of two.

    Attributes:
        x: shape of what is read, [n, c, *spatial].
        w: shape of the weights: [m, c/group, *kernel], transposed [c, m/group, *kernel].
        y: shape of the result, [n, m, *spatial].
        pads_begin: padding before the first element of each spatial axis.
        pads_end: padding after the last one.
        strides: distance of neighbouring windows.
        dilations: distance of neighbouring elements of a window.
        transposed: the gradient of the convolution whose result `x` would be, with respect to its
            input `y`.
        format: physical order of x, w, y and of a residual.
        tensor_cores: whether float32 may be rounded to TF32.
        epilogue: what the same graph does to the result.
    """

    x: Ints
    w: Ints
    y: Ints
    pads_begin: Ints
    pads_end: Ints
    strides: Ints
    dilations: Ints
    transposed: bool
    format: Format
    tensor_cores: bool
    epilogue: Epilogue = Epilogue()

    @property
    def title(self) -> str:
        """What it does, in short: ``conv+bias+relu``."""
        name = "dgrad" if self.transposed else "conv"
        return f"{name}+{self.epilogue}" if self.epilogue else name

    def __str__(self) -> str:
        pads = f"pads {_text(self.pads_begin)}:{_text(self.pads_end)}"
        return (
            f"{self.title} x {_text(self.x)} w {_text(self.w)} y {_text(self.y)} {pads}"
            f" strides {_text(self.strides)} dilations {_text(self.dilations)}"
            f" {self.format.value} {'tf32' if self.tensor_cores else 'float32'}"
        )

    @property
    def group(self) -> int:
        """Number of groups of channels."""
        return self.y[1] // self.w[1] if self.transposed else self.x[1] // self.w[1]

    @property
    def thinnest(self) -> int:
        """Channels that a group reads or gives, the smaller number."""
        return min(self.w[1], self.w[0] // self.group)

    @property
    def bias(self) -> Ints:
        """Shape of a bias, [1, m, 1, ...]."""
        return (1, self.y[1]) + (1,) * (len(self.y) - 2)

    def with_epilogue(self, epilogue: Epilogue) -> Convolution:
        """Return the same convolution with this epilogue in its graph."""
        return replace(self, epilogue=epilogue)

    def strides_of(self, dims: Ints) -> Ints:
        """Return the distance in elements of neighbours along each axis of x, w, y or the bias."""
        return strides(dims, self.format)


def describe(node: Node, precision: Precision) -> Convolution | str:
    """Return a Conv or ConvTranspose node in cuDNN's terms, or why it cannot be put so.

    In float32 cuDNN is fastest on plain tensors; its TF32 kernels want channels last.
    """
    values = [value.tensor for value in node.inputs if value is not None]
    wrong = sorted({str(value.dtype) for value in values if value.dtype != np.float32})
    if wrong:
        return f"dtype {', '.join(wrong)}; only float32 is claimed"
    x, w = values[0].dims, values[1].dims
    if len(x) > 5:
        return f"{len(x) - 2} spatial axes; cuDNN has at most 3"
    if 0 in (*x, *w):
        return "a tensor without elements"
    transposed = isinstance(node.op, ConvTranspose)
    found = (transposed_window if transposed else window)(node.op, x[2:], w[2:])
    # What transposed windows do not reach lies at the end; cuDNN allows less than a stride of it.
    if any(-pad >= step for pad, step in zip(found.pads_end, found.strides, strict=True)):
        return f"output_padding of a stride ({_text(found.strides)}) or more"
    one = len(x) == 3
    tf32 = precision == "tf32"
    return Convolution(
        x=_with_axis(x) if one else x,
        w=_with_axis(w) if one else w,
        y=_with_axis(node.output.tensor.dims) if one else node.output.tensor.dims,
        pads_begin=(0,) * one + found.pads_begin,
        pads_end=(0,) * one + tuple(max(pad, 0) for pad in found.pads_end),
        strides=(1,) * one + found.strides,
        dilations=(1,) * one + found.dilations,
        transposed=transposed,
        format=Format.CHANNELS_LAST if tf32 else Format.PLAIN,
        tensor_cores=tf32,
    )


def _with_axis(dims: Ints) -> Ints:
    """Return `dims` with an axis of one element in front of the only spatial one."""
    return (*dims[:2], 1, *dims[2:])


def _text(dims: Ints) -> str:
    return "x".join(map(str, dims))


@dataclass(frozen=True, slots=True)
class Pattern:
    """A convolution and the nodes behind it that run in the same step.

    Attributes:
        nodes: the convolution, perhaps Add, perhaps Relu.
        x: what it reads.
        w: its weights.
        bias: one number per channel, or None.
        residual: what Add adds to the result, or None.
        y: what the last node gives.
    """

    nodes: tuple[Node, ...]
    x: Value
    w: Value
    bias: Value | None
    residual: Value | None

    @property
    def y(self) -> Value:
        """What the last node computes."""
        return self.nodes[-1].output

    @property
    def epilogue(self) -> Epilogue:
        """What happens to the convolution's result."""
        return Epilogue(
            residual=self.residual is not None,
            bias=self.bias is not None,
            relu=isinstance(self.nodes[-1].op, Relu),
        )


def match(graph: Graph, node: Node, free: Set[Node]) -> Pattern:
    """Return the longest pattern that begins with this convolution and lies in `free`.

    Intermediate results must have no other reader; a residual must have the result's shape.
    Without a bias the weights must be constant: a bias of zeros is packed beside them.
    """
    x, w = node.inputs[0], node.inputs[1]
    if x is None or w is None:
        raise ValueError(f"'{node.name}' lacks its input or its weights")
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is None and not w.is_constant:
        return Pattern((node,), x, w, None, None)
    nodes, residual = [node], None
    follower = _follower(graph, node, free)
    if follower is not None and isinstance(follower.op, Add | Sum):
        others = [value for value in follower.inputs if value is not node.output]
        if len(others) == 1 and others[0] and others[0].tensor == node.output.tensor:
            nodes.append(follower)
            residual = others[0]
            follower = _follower(graph, follower, free)
    if follower is not None and isinstance(follower.op, Relu):
        nodes.append(follower)
    return Pattern(tuple(nodes), x, w, bias, residual)


def _follower(graph: Graph, node: Node, free: Set[Node]) -> Node | None:
    follower = graph.sole_consumer(node.output)
    return follower if follower in free else None
