"""Random convolutions, and their results in float64."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from ...runtime.errors import ShapeError
from ...runtime.ir.dtypes import DType, float32
from ...runtime.ir.graph import Graph
from ...runtime.ir.infer import infer
from ...runtime.ir.types import Array, TensorType
from ...runtime.ops.conv import Conv, ConvTranspose
from ...runtime.ops.elementwise import Add, Relu
from ...runtime.ops.window import transposed_window, window

Ints = tuple[int, ...]


@dataclass(frozen=True)
class ConvolutionCase:
    """A convolution with what follows it.

    Attributes:
        op: Conv or ConvTranspose.
        x: shape of the input.
        w: shape of the weights.
        bias: whether there is one.
        add: whether a second input, of the result's shape, is added.
        relu: whether ReLU comes last.
        dtype: of all tensors.
    """

    op: Conv | ConvTranspose
    x: Ints
    w: Ints
    bias: bool = False
    add: bool = False
    relu: bool = False
    dtype: DType = float32

    def __str__(self) -> str:
        extras = [name for name in ("bias", "add", "relu") if getattr(self, name)]
        return " ".join([str(self.op), f"x{self.x}", f"w{self.w}", *extras])

    @property
    def transposed(self) -> bool:
        """Whether it is a ConvTranspose."""
        return isinstance(self.op, ConvTranspose)

    @property
    def filters(self) -> int:
        """Channels of the result."""
        return self.w[1] * self.op.group if self.transposed else self.w[0]

    def constants(self) -> tuple[Array, Array]:
        """Weights and bias; neither is symmetric, so that nothing can be mirrored unnoticed."""
        rng = np.random.default_rng(1)
        shapes = self.w, (self.filters,)
        w, b = (rng.standard_normal(shape, np.float32).astype(self.dtype) for shape in shapes)
        return w, b

    def graph(self) -> Graph:
        """The case as a graph of one to three nodes with inputs x and, where it adds, z."""
        w, b = self.constants()
        graph = Graph("case")
        x = graph.add_input("x", TensorType(self.dtype, self.x))
        inputs = [x, graph.constant(w, "w"), *([graph.constant(b, "b")] if self.bias else [])]
        y = graph.insert(self.op, inputs, name="conv").output
        infer(graph)
        if self.add:
            z = graph.add_input("z", TensorType(self.dtype, y.tensor.dims))
            y = graph.insert(Add(), [y, z], name="add").output
        if self.relu:
            y = graph.insert(Relu(), [y], name="relu").output
        graph.set_outputs({"y": y})
        infer(graph)
        return graph

    def feeds(self) -> dict[str, Array]:
        """Numbers for the inputs."""
        rng = np.random.default_rng(2)
        return {
            v.name: rng.standard_normal(v.tensor.dims, np.float32).astype(self.dtype)
            for v in self.graph().inputs
        }

    def expected(self) -> Array:
        """The result in float64, of numbers that are rounded to the dtype."""
        w, b = self.constants()
        feeds = self.feeds()
        compute = transposed if isinstance(self.op, ConvTranspose) else convolved
        y = compute(self.op, feeds["x"], w)
        if self.bias:
            y = y + b.reshape(-1, *[1] * (y.ndim - 2))
        if self.add:
            y = y + feeds["z"]
        return np.maximum(y, 0) if self.relu else y


def convolved(op: Conv | ConvTranspose, x: Array, w: Array) -> Array:
    """Conv without its bias, as a sum over the elements of the window."""
    found = window(op, x.shape[2:], w.shape[2:])
    pads = zip(found.pads_begin, found.pads_end, strict=True)
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *pads])
    n, filters = len(x), len(w)
    y = np.zeros((n, op.group, filters // op.group, *found.output))
    grouped = w.astype(np.float64).reshape(op.group, filters // op.group, *w.shape[1:])
    for tap in product(*map(range, w.shape[2:])):
        places = zip(tap, found.dilations, found.strides, found.output, strict=True)
        at = tuple(slice(t * d, t * d + (o - 1) * s + 1, s) for t, d, s, o in places)
        part = padded[(..., *at)].reshape(n, op.group, -1, *found.output)
        y += np.einsum("ngc...,gmc->ngm...", part, grouped[(..., *tap)])
    return y.reshape(n, filters, *found.output)


def transposed(op: Conv | ConvTranspose, x: Array, w: Array) -> Array:
    """ConvTranspose without its bias: every input adds its window to the result."""
    found = transposed_window(op, x.shape[2:], w.shape[2:])
    sizes = (x.shape[2:], found.strides, found.extent, found.output, found.pads_begin)
    full = [max((i - 1) * s + e, o + b) for i, s, e, o, b in zip(*sizes, strict=True)]
    n, group = len(x), op.group
    y = np.zeros((n, group, w.shape[1], *full))
    parts = x.astype(np.float64).reshape(n, group, -1, *x.shape[2:])
    grouped = w.astype(np.float64).reshape(group, -1, *w.shape[1:])
    for tap in product(*map(range, w.shape[2:])):
        places = zip(tap, found.dilations, found.strides, x.shape[2:], strict=True)
        at = tuple(slice(t * d, t * d + (i - 1) * s + 1, s) for t, d, s, i in places)
        y[(..., *at)] += np.einsum("ngc...,gcm->ngm...", parts, grouped[(..., *tap)])
    crop = zip(found.pads_begin, found.output, strict=True)
    y = y[(..., *(slice(b, b + o) for b, o in crop))]
    return y.reshape(n, -1, *found.output)


def random_cases(count: int, seed: int = 0) -> list[ConvolutionCase]:
    """Draw convolutions over one to three axes, with every attribute of ONNX at work."""
    rng = np.random.default_rng(seed)
    cases: list[ConvolutionCase] = []
    while len(cases) < count:
        case = _draw(rng)
        if case is not None:
            cases.append(case)
    return cases


def _draw(rng: np.random.Generator) -> ConvolutionCase | None:
    axes = int(rng.choice([1, 2, 2, 2, 3]))

    def draw(low: int, high: int, count: int = axes) -> Ints:
        return tuple(int(v) for v in rng.integers(low, high + 1, count))

    group = int(rng.choice([1, 1, 1, 2, 3, 8]))
    c, m = (group * int(v) for v in rng.choice([1, 2, 3, 4, 8, 16, 20], 2))
    kernel, strides = draw(1, 5 if axes < 3 else 3), draw(1, 3)
    dilations = draw(1, 3) if rng.random() < 0.3 else (1,) * axes
    auto_pad = str(rng.choice(["NOTSET", "NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    pads = draw(0, 3, 2 * axes) if auto_pad == "NOTSET" else None
    x = (int(rng.integers(1, 4)), c, *draw(1, 20 if axes < 3 else 9))
    shared = {
        "group": group, "strides": strides, "dilations": dilations,
        "auto_pad": auto_pad, "pads": pads, "kernel_shape": kernel,
    }  # fmt: skip
    bias, add, relu = (bool(v) for v in rng.integers(0, 2, 3))
    if rng.random() < 0.25:
        extra = tuple(int(rng.integers(0, s)) for s in strides) if auto_pad == "NOTSET" else None
        op = ConvTranspose(output_padding=extra, **shared)
        case = ConvolutionCase(op, x, (c, m // group, *kernel), bias, add, relu)
    else:
        case = ConvolutionCase(Conv(**shared), x, (m, c // group, *kernel), bias, add, relu)
    return case if fits(case) else None


def fits(case: ConvolutionCase) -> bool:
    """Whether the windows fit into the input, so that there is a result at all."""
    geometry = transposed_window if case.transposed else window
    try:
        found = geometry(case.op, case.x[2:], case.w[2:])
    except ShapeError:
        return False
    return all(size >= 1 for size in found.output)
