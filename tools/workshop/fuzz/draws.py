"""What a random graph may grow by: single operators, their attributes at random."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from .growing import FLOAT, Maker, RandomGraph, swapped

_UNARY = ("Abs", "Relu", "Sigmoid", "Tanh", "Neg", "Erf", "Gelu", "Softplus", "HardSwish", "Elu")
_UNARY += ("Identity", "Mish", "LeakyRelu", "HardSigmoid", "Softsign", "ThresholdedRelu", "Celu")
_PAIRS = ("Add", "Sub", "Mul", "Max", "Min", "Mean", "Sum")
_REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceL1")
_REDUCTIONS += ("ReduceSumSquare", "ReduceLogSumExp")
#: Constants that rewrites know, and one that they do not.
_SPECIAL = (0.0, 1.0, -1.0, 0.5, 2.0, 1e-5, 0.7)


def _unary(g: RandomGraph) -> None:
    g.node(g.dice.choice(_UNARY), g.need())


def _domain(g: RandomGraph) -> None:
    x = g.need()
    kind = g.dice.choice(
        ("Sqrt", "Log", "Reciprocal", "Exp", "Pow", "Clip", "Round", "Floor", "Sign")
    )
    if kind in ("Sqrt", "Log", "Reciprocal"):
        g.node(kind, g.node("Add", g.node("Abs", x), g.constant(0.1)))
    elif kind == "Exp":
        g.node(kind, g.node("Tanh", x))
    elif kind == "Pow":
        g.node(kind, g.node("Abs", x), g.constant(g.dice.choice((2.0, 3.0, 0.5, 1.0, 0.0))))
    elif kind == "Clip":
        low, high = (g.constant(v) if g.coin(0.7) else "" for v in (-0.5, 6.0))
        g.node(kind, x, low, high)
    else:
        g.node(kind, x)


def _binary(g: RandomGraph) -> None:
    x = g.need()
    kind = g.dice.choice((*_PAIRS, "Div", "PRelu"))
    shape = g.shape(x)
    roll = g.dice.random()
    if roll < 0.3:
        y = g.constant(np.full((1,) * g.dice.randrange(len(shape) + 2), g.dice.choice(_SPECIAL)))
    elif roll < 0.6:
        start = g.dice.randrange(len(shape) + 1)
        lead = (1,) * g.dice.choice((0, 0, 0, start, start + 1))  # also more axes than x has
        y = g.weights(*lead, *(d if g.coin() else 1 for d in shape[start:]))
    else:
        y = g.need()
        kind = "Add" if kind == "PRelu" else kind
    if kind == "Div":
        y = g.node("Add", g.node("Abs", y), g.constant(0.5))
    if kind == "PRelu" and len(g.shape(y)) > len(shape):
        kind = "Mul"  # a slope adds no axes
    if kind != "PRelu" and g.coin(0.3):
        x, y = y, x
    g.node(kind, x, y)


def _select(g: RandomGraph) -> None:
    x, kind = g.need(), g.dice.choice(("Greater", "Less", "GreaterOrEqual", "LessOrEqual"))
    condition = g.node(kind, x, g.constant(g.dice.choice((0.0, 0.3))))
    if g.coin(0.3):
        condition = g.node("Not", condition)
    other = g.constant(g.dice.choice((0.0, -1e9, 1.0))) if g.coin() else g.need()
    first = (x, other) if g.coin() else (other, x)
    g.node("Where", condition, *first)


def _cast(g: RandomGraph) -> None:
    narrow = g.dice.choice((TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT32))
    x = g.node("Cast", g.need(), to=narrow)
    if g.coin(0.3) and narrow != TensorProto.INT32:
        x = g.node(g.dice.choice(("Relu", "Neg", "Abs")), x)
    g.node("Cast", x, to=FLOAT)


# ── data movement ────────────────────────────────────────────────────────────────────────────────


def _transpose(g: RandomGraph) -> None:
    x = g.need()
    order = list(range(len(g.shape(x))))
    g.dice.shuffle(order)
    g.node("Transpose", x, perm=order)


def _reshape(g: RandomGraph) -> None:
    x = g.need()
    shape = g.shape(x)
    dims = g.factors(prod(shape))
    if g.coin(0.3) and len(shape) > 1:
        at = g.dice.randrange(len(shape) - 1)
        dims = [*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]]
    if g.coin(0.3):
        dims[g.dice.randrange(len(dims))] = -1
    g.node("Reshape", x, g.constant(dims, np.int64))


def _squeeze(g: RandomGraph) -> None:
    x = g.need()
    shape = g.shape(x)
    ones = [i for i, d in enumerate(shape) if d == 1]
    if ones and g.coin():
        g.node("Squeeze", x, g.constant([g.dice.choice(ones)], np.int64))
    elif g.coin(0.2):
        g.node("Flatten", x, axis=g.dice.randrange(len(shape) + 1))
    elif len(shape) < 5:
        g.node("Unsqueeze", x, g.constant([g.dice.randrange(len(shape) + 1)], np.int64))


def _slice(g: RandomGraph, x: str = "") -> str:
    x = x or g.need()
    shape = g.shape(x)
    axis = g.axis(shape)
    length = shape[axis]
    step = g.dice.choice((1, 1, 1, 2, -1))
    start = g.dice.randrange(length)
    end = g.dice.choice((start + 1, length, length + 5, start - length + 1 or length))
    if step < 0:
        start, end = length - 1, g.dice.choice((-length - 1, 0))
    given = (g.constant([v], np.int64) for v in (start, end, axis, step))
    return g.node("Slice", x, *given)


def _split(g: RandomGraph) -> None:
    x = g.need()
    shape = g.shape(x)
    axis = g.axis(shape)
    length = shape[axis]
    if length < 2:
        raise ValueError("nothing to split")
    first = g.dice.randrange(1, length)
    sizes = g.constant([first, length - first], np.int64)
    g.node("Split", x, sizes, outputs=2, axis=axis)
    if g.coin():
        parts = list(g.nodes[-1].output)
        g.dice.shuffle(parts)
        g.node("Concat", *parts, axis=axis)


def _concat(g: RandomGraph) -> None:
    x = g.need()
    same = [n for n, t in g.types.items() if t[0] == FLOAT and len(t[1]) == len(g.shape(x))]
    g.node(
        "Concat",
        x,
        *(g.dice.choice(same) for _ in range(g.dice.randrange(1, 3))),
        axis=g.axis(g.shape(x)),
    )


def _expand(g: RandomGraph) -> None:
    x = g.need()
    shape = [d if d > 1 else g.dice.choice((1, 2, 3)) for d in g.shape(x)]
    if g.coin(0.3):
        g.node("Tile", x, g.constant([g.dice.choice((1, 1, 2)) for _ in shape], np.int64))
    else:
        lead = [g.dice.choice((1, 2))] if g.coin(0.3) and len(shape) < 5 else []
        g.node("Expand", x, g.constant([*lead, *shape], np.int64))


def _pad(g: RandomGraph) -> None:
    x = g.need()
    shape = g.shape(x)
    mode = g.dice.choice(("constant", "constant", "reflect", "edge", "wrap"))
    ends = [g.dice.choice((0, 0, 1, 2)) if d > 2 else 0 for d in (*shape, *shape)]
    value = [g.constant(g.dice.choice((0.0, 0.0, 1.5)))] if mode == "constant" and g.coin() else []
    g.node("Pad", x, g.constant(ends, np.int64), *value, mode=mode)


def _gather(g: RandomGraph) -> None:
    x = g.need()
    shape = g.shape(x)
    axis = g.axis(shape)
    length = shape[axis]
    count: Any = g.dice.choice(((), (1,), (length,), (3,), (2, 2)))
    runs = np.arange(length) if count == (length,) and g.coin() else None
    some = np.array([g.dice.randrange(-length, length) for _ in range(prod(count))])
    indices = runs if runs is not None else some.reshape(count)
    if g.coin(0.2) and np.ndim(indices) == 1:
        every = np.broadcast_to(
            np.reshape(indices, [-1 if i == axis % len(shape) else 1 for i in range(len(shape))]),
            [len(indices) if i == axis % len(shape) else d for i, d in enumerate(shape)],
        )
        g.node("GatherElements", x, g.constant(every, np.int64), axis=axis)
    else:
        g.node("Gather", x, g.constant(indices, np.int64), axis=axis)


def _roll(g: RandomGraph) -> None:
    x = g.need()
    shape = g.shape(x)
    axis = g.dice.randrange(len(shape))
    if shape[axis] < 2:
        raise ValueError("nothing to roll")
    at = g.dice.randrange(1, shape[axis])
    ends = [(0, at), (at, 1 << 62)]
    parts = [
        g.node("Slice", x, *(g.constant([v], np.int64) for v in (first, last, axis)))
        for first, last in ends
    ]
    g.node("Concat", *reversed(parts), axis=axis)


def _blocks(g: RandomGraph) -> None:
    x = g.need(4)
    _, channels, height, width = g.shape(x)
    if height % 2 == width % 2 == 0:
        g.node("SpaceToDepth", x, blocksize=2)
    elif channels % 4 == 0:
        g.node("DepthToSpace", x, blocksize=2, mode=g.dice.choice(("DCR", "CRD")))


def _triangle(g: RandomGraph) -> None:
    x = g.need(2, 3, 4)
    g.node("Trilu", x, g.constant(g.dice.choice((-1, 0, 1)), np.int64), upper=g.dice.randrange(2))


def _by_shape(g: RandomGraph) -> None:
    """Reshape by sizes that are read from a tensor, as exporters with dynamic axes write it."""
    x = g.need(2, 3, 4)
    shape = g.shape(x)
    sizes = g.node("Shape", x)
    first = g.node("Gather", sizes, g.constant([0], np.int64), axis=0)
    rest = (
        g.constant([-1], np.int64)
        if g.coin()
        else g.node("Slice", sizes, g.constant([1], np.int64), g.constant([len(shape)], np.int64))
    )
    both = g.node("Concat", first, rest, axis=0)
    # Its values are not in shape inference; the result's shape is.
    tail = (prod(shape[1:]),) if rest in g.constants else shape[1:]
    name = f"t{len(g.types)}"
    g.nodes.append(helper.make_node("Reshape", [x, both], [name], f"Reshape_{len(g.nodes)}"))
    g.types[name] = FLOAT, (shape[0], *tail)


# ── reductions, norms, products ──────────────────────────────────────────────────────────────────


def _reduce(g: RandomGraph) -> None:
    x = g.need()
    shape = g.shape(x)
    axes = sorted(g.dice.sample(range(len(shape)), g.dice.randrange(1, len(shape) + 1)))
    kept = int(g.coin(0.7))
    g.node(g.dice.choice(_REDUCTIONS), x, g.constant(axes, np.int64), keepdims=kept)


def _softmax(g: RandomGraph) -> None:
    x = g.need()
    kind = g.dice.choice(("Softmax", "Softmax", "LogSoftmax"))
    g.node(kind, x, axis=g.axis(g.shape(x)))


def _norm(g: RandomGraph) -> None:
    """A norm of rows, spelled out in one of many ways or as an operator."""
    x = g.need(2, 3, 4)
    size = g.shape(x)[-1]
    if size < 4:
        raise ValueError("a norm of two elements is a sign: runtimes show what they round")
    axes = g.constant([-1 if g.coin() else len(g.shape(x)) - 1], np.int64)
    lead = (1,) * g.dice.choice((0, 0, 0, 1, 2, 3))
    scale = g.weights(*lead, size) if g.coin(0.8) else g.constant(np.ones((*lead, size)))
    if g.coin(0.3) and not lead:
        g.node("LayerNormalization", x, scale, *([g.weights(size)] if g.coin() else []))
        return
    centred = x
    if g.coin(0.6):
        centred = g.node("Sub", x, g.node("ReduceMean", x, axes))
    squared = g.dice.choice(
        (("Mul", centred, centred), ("Pow", centred, g.constant(2.0)), ("Pow", x, g.constant(2.0)))
    )
    spread = g.node("ReduceMean", g.node(*squared), axes)
    root = g.node("Sqrt", g.node("Add", spread, g.constant(g.dice.choice((1e-5, 1e-6)))))
    if g.coin():
        normal = g.node("Div", centred, root)
    else:
        pair = centred, g.node("Reciprocal", root)
        normal = g.node("Mul", *(pair if g.coin() else pair[::-1]))
    y = g.node("Mul", normal, scale) if g.coin(0.8) else normal
    if g.coin():
        g.node("Add", y, g.weights(size))


def _channel_norm(g: RandomGraph) -> None:
    x = g.need(3, 4)
    channels = g.shape(x)[1]
    scale, shift = g.weights(channels), g.weights(channels)
    kind = g.dice.choice(("BatchNormalization", "InstanceNormalization", "GroupNormalization"))
    if kind == "BatchNormalization":
        variance = g.constant(np.abs(g.constants[g.weights(channels)]) + 0.5)
        g.node(kind, x, scale, shift, g.weights(channels), variance)
    elif prod(g.shape(x)[2:]) < 4:
        raise ValueError("a norm of two elements is a sign: runtimes show what they round")
    elif kind == "InstanceNormalization":
        g.node(kind, x, scale, shift)
    else:
        able = [n for n in (1, 2, 3, 4, channels) if channels % n == 0]
        g.node(kind, x, scale, shift, num_groups=g.dice.choice(able))


def _product(g: RandomGraph) -> None:
    x = g.need(2, 3, 4)
    shape = g.shape(x)
    if g.coin(0.25):
        y = g.need(2, 3, 4)
        g.node("MatMul", x, y if g.coin() else g.node("Transpose", x, perm=swapped(len(shape))))
        return
    n = g.width()
    lead = shape[:-2] if g.coin(0.2) else ()
    y = g.node("MatMul", x, g.weights(*lead, shape[-1], n))
    if g.coin():
        pair = y, g.weights(n)
        g.node("Add", *(pair if g.coin() else pair[::-1]))


def _gemm(g: RandomGraph) -> None:
    x = g.need(2)
    transposed, other = int(g.coin(0.3)), int(g.coin())
    k, n = g.shape(x)[0 if transposed else 1], g.width()
    w = g.weights(n, k) if other else g.weights(k, n)
    bias = [g.weights(*g.dice.choice(((n,), (1, n), (1,), ())))] if g.coin(0.7) else []
    alpha, beta = g.dice.choice((1.0, 0.5)), g.dice.choice((1.0, 2.0))
    g.node("Gemm", x, w, *bias, transA=transposed, transB=other, alpha=alpha, beta=beta)


def _conv(g: RandomGraph) -> None:
    x = g.need(3, 4)
    _, channels, *sizes = g.shape(x)
    group = g.dice.choice([n for n in (1, 1, 2, channels) if channels % n == 0])
    width = group * (g.dice.choice((1, 2, 3)) if group > 1 else g.width())
    kernel = [g.dice.choice([k for k in (1, 2, 3) if k <= size]) for size in sizes]
    same = kernel if g.coin(0.3) else [1] * len(kernel)
    pads = [k // 2 for k in kernel] * 2 if g.coin(0.7) else [0] * 2 * len(kernel)
    strides = [g.dice.choice((1, 1, 2)) for _ in kernel]
    if g.coin(0.15):
        w = g.weights(channels, width // group, *kernel)
        g.node("ConvTranspose", x, w, group=group, strides=strides, kernel_shape=kernel)
        return
    w = g.weights(width, channels // group, *kernel)
    bias = [g.weights(width)] if g.coin() else []
    fits = all(k <= 2 and k * k - k + 1 <= n for k, n in zip(kernel, sizes, strict=True))
    dilations = same if same == kernel and fits else [1] * len(kernel)
    y = g.node("Conv", x, w, *bias, group=group, pads=pads, strides=strides, dilations=dilations)
    if g.coin(0.3):
        scale = g.weights(width), g.weights(width), g.weights(width)
        g.node("BatchNormalization", y, *scale, g.constant(np.full(width, 0.7)))


def _pool(g: RandomGraph) -> None:
    x = g.need(3, 4)
    sizes = g.shape(x)[2:]
    if g.coin(0.3):
        g.node(g.dice.choice(("GlobalAveragePool", "GlobalMaxPool")), x)
        return
    kernel = [g.dice.choice([k for k in (1, 2, 3) if k <= size]) for size in sizes]
    pads = [k // 2 for k in kernel] * 2 if g.coin() else [0] * 2 * len(kernel)
    strides = [g.dice.choice((1, 2)) for _ in kernel]
    # Of windows that would start behind the last element ONNX's inference and its text differ.
    inside = not any(pads) and all(k >= s for k, s in zip(kernel, strides, strict=True))
    ceil = int(g.coin(0.3) and inside)
    if g.coin():
        g.node("MaxPool", x, kernel_shape=kernel, pads=pads, strides=strides, ceil_mode=ceil)
    else:
        include = int(g.coin())
        g.node(
            "AveragePool",
            x,
            kernel_shape=kernel,
            pads=pads,
            strides=strides,
            ceil_mode=ceil,
            count_include_pad=include,
        )


def _resize(g: RandomGraph) -> None:
    x = g.need(4)
    scales = g.constant([1, 1, g.dice.choice((1, 2, 1.5)), 2])
    mode = g.dice.choice(("nearest", "linear"))
    convention = g.dice.choice(("half_pixel", "asymmetric", "pytorch_half_pixel"))
    near: dict[str, Any] = {"nearest_mode": "floor"} if mode == "nearest" else {}
    g.node("Resize", x, "", scales, mode=mode, coordinate_transformation_mode=convention, **near)


def _order(g: RandomGraph) -> None:
    x = g.need()
    axis = g.axis(g.shape(x))
    kind = g.dice.choice(("ArgMax", "TopK", "CumSum"))
    if kind == "TopK":
        count = g.constant([g.dice.randrange(1, g.shape(x)[axis] + 1)], np.int64)
        g.node(kind, x, count, outputs=2, axis=axis, largest=g.dice.randrange(2))
    elif kind == "CumSum":
        g.node(kind, x, g.constant(axis, np.int64), exclusive=g.dice.randrange(2))
    else:
        g.node("Cast", g.node(kind, x, axis=axis, keepdims=int(g.coin())), to=FLOAT)


def _quantized(g: RandomGraph) -> None:
    dtype = g.dice.choice((np.int8, np.uint8))
    given = g.constant(0.05), g.constant(3, dtype)
    y = g.node("QuantizeLinear", g.need(), *given)
    if g.coin(0.3):
        y = g.node("Reshape", y, g.constant(g.factors(prod(g.shape(y))), np.int64))
    g.node("DequantizeLinear", y, *given)


def _recurrent(g: RandomGraph) -> None:
    x = g.need(3)
    size, wide = g.shape(x)[-1], g.dice.choice((2, 4))
    kind, gates = g.dice.choice((("LSTM", 4), ("GRU", 3), ("RNN", 1)))
    ways = g.dice.choice((1, 1, 2))
    direction = "bidirectional" if ways == 2 else g.dice.choice(("forward", "reverse"))
    w, r = g.weights(ways, gates * wide, size), g.weights(ways, gates * wide, wide)
    g.node(kind, x, w, r, g.weights(ways, 2 * gates * wide), hidden_size=wide, direction=direction)


#: How often each is drawn.
DRAWS: dict[Maker, float] = {
    _unary: 5,
    _domain: 3,
    _binary: 8,
    _select: 2,
    _cast: 1,
    _transpose: 5,
    _reshape: 4,
    _squeeze: 3,
    _slice: 3,
    _split: 2,
    _concat: 2,
    _expand: 2,
    _pad: 2,
    _gather: 3,
    _roll: 1,
    _blocks: 1,
    _triangle: 1,
    _by_shape: 1,
    _reduce: 3,
    _softmax: 2,
    _norm: 3,
    _channel_norm: 2,
    _product: 5,
    _gemm: 1,
    _conv: 4,
    _pool: 2,
    _resize: 1,
    _order: 1,
    _quantized: 1,
    _recurrent: 0.5,
}
