"""What a random graph may grow by: types other than float32, and sizes that are computed."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto

from .growing import FEW_BITS, FLOAT, Maker, RandomGraph

_NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
_WHOLE = (
    TensorProto.INT8,
    TensorProto.UINT8,
    TensorProto.INT16,
    TensorProto.INT32,
    TensorProto.INT64,
)
_NUMPY: dict[int, Any] = {
    TensorProto.INT8: np.int8,
    TensorProto.UINT8: np.uint8,
    TensorProto.INT16: np.int16,
    TensorProto.INT32: np.int32,
    TensorProto.INT64: np.int64,
}
_ORDERS = ("Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal")


def whole(g: RandomGraph, *dtypes: int) -> str:
    """Return a tensor of integers: one that is there, or a float32 one that is cast."""
    dtype = g.dice.choice(dtypes or _WHOLE)
    found = g.any(dtype=dtype)
    if found is not None and g.coin(0.6):
        return found
    x = g.node(
        "Clip", g.need(), g.constant(0.0 if dtype == TensorProto.UINT8 else -9.0), g.constant(9.0)
    )
    x = g.node("Floor", g.node("Mul", x, g.constant(g.dice.choice((1.0, 3.0)))))
    return g.node("Cast", x, to=dtype)


def _back(g: RandomGraph, x: str) -> None:
    if g.coin(0.7):
        g.node("Cast", x, to=FLOAT)


def _integers(g: RandomGraph) -> None:
    """Arithmetic of integers, which wraps around."""
    x = whole(g, TensorProto.INT32, TensorProto.INT64, TensorProto.INT64)
    dtype, shape = g.types[x]
    kind = g.dice.choice(("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Neg", "Abs", "Sign"))
    if kind in ("Neg", "Abs", "Sign"):
        x = g.node(kind, x)
    else:
        tail = shape[g.dice.randrange(len(shape) + 1) :] if g.coin() else ()
        values = np.array([g.dice.choice((1, 2, 3, -2, 5)) for _ in range(prod(tail))])
        other = g.constant(values.reshape(tail), _NUMPY[dtype])
        if kind not in ("Div", "Mod") and g.coin(0.3):
            other = g.need(dtype=dtype)
        pair = (x, other) if kind in ("Div", "Mod") or g.coin(0.7) else (other, x)
        x = g.node(kind, *pair, **({"fmod": int(g.coin(0.3))} if kind == "Mod" else {}))
    _back(g, x)


def _bits(g: RandomGraph) -> None:
    x = whole(g, TensorProto.UINT8, TensorProto.INT32)
    dtype, _ = g.types[x]
    kind = g.dice.choice(("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "BitShift"))
    if kind == "BitShift":
        x = g.node("Cast", x, to=TensorProto.UINT8)
        amount = g.constant(g.dice.choice((0, 1, 3)), np.uint8)
        x = g.node(kind, x, amount, direction=g.dice.choice(("LEFT", "RIGHT")))
    elif kind == "BitwiseNot":
        x = g.node(kind, x)
    else:
        x = g.node(kind, x, g.constant(g.dice.choice((1, 6, 127)), _NUMPY[dtype]))
    _back(g, x)


def _truths(g: RandomGraph) -> None:
    """Comparisons, what combines them, and what reads them."""
    x = g.need()
    first = g.node(g.dice.choice(_ORDERS), x, g.constant(g.dice.choice((0.0, 0.3))))
    other = g.any(dtype=TensorProto.BOOL)
    if other and g.coin(0.6):
        first = g.node(g.dice.choice(("And", "Or", "Xor", "Equal")), first, other)
    if g.coin(0.3):
        first = g.node("Not", first)
    how = g.dice.randrange(4)
    if how == 0:
        g.node("Cast", first, to=g.dice.choice((FLOAT, TensorProto.INT64, TensorProto.FLOAT16)))
    elif how == 1:
        g.node("Mul", x, g.node("Cast", first, to=FLOAT))
    elif how == 2:
        g.node("Where", first, x, g.constant(g.dice.choice((0.0, -3.4028235e38, float("-inf")))))


def _integer_reduction(g: RandomGraph) -> None:
    x = whole(g, TensorProto.INT32, TensorProto.INT64)
    shape = g.shape(x)
    axes = sorted(g.dice.sample(range(len(shape)), g.dice.randrange(1, len(shape) + 1)))
    kind = g.dice.choice(
        ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "CumSum", "ArgMin", "TopK")
    )
    axis = g.axis(shape)
    if kind == "ReduceProd" and (g.types[x][0] == TensorProto.INT32 or prod(shape) > 8):
        raise ValueError("products that overflow saturate in onnxruntime")
    if kind == "CumSum":
        x = g.node(kind, x, g.constant(axis, np.int64), reverse=g.dice.randrange(2))
    elif kind == "ArgMin":
        x = g.node(kind, x, axis=axis, select_last_index=g.dice.randrange(2))
    elif kind == "TopK":
        g.node(kind, x, g.constant([1], np.int64), outputs=2, axis=axis)
        return
    else:
        given = [g.constant(axes, np.int64)] if g.coin(0.8) else []
        x = g.node(kind, x, *given, keepdims=int(g.coin()))
    _back(g, x)


def _other_floats(g: RandomGraph) -> None:
    """Some nodes in another float type, constants and all."""
    dtype = g.dice.choice(_NARROW)
    x = g.any(dtype=dtype)
    if x is None or g.coin(0.6):
        x = g.node("Cast", g.need(), to=dtype)
    for _ in range(g.dice.randrange(1, 4)):
        shape = g.shape(x)
        how = g.dice.randrange(5)
        if how == 0:
            x = g.node(g.dice.choice(("Relu", "Neg", "Abs", "Sigmoid", "Tanh", "Identity")), x)
        elif how == 1:
            tail = tuple(d if g.coin() else 1 for d in shape[g.dice.randrange(len(shape) + 1) :])
            other = g.node("Cast", g.weights(*tail), to=dtype)
            x = g.node(g.dice.choice(("Add", "Mul", "Sub")), x, other)
        elif how == 2 and len(shape) >= 2:
            x = g.node("MatMul", x, g.node("Cast", g.weights(shape[-1], g.width()), to=dtype))
        elif how == 3 and shape:
            x = g.node("Softmax", x, axis=-1)
        elif shape:
            x = g.node("ReduceMean", x, g.constant([-1], np.int64), keepdims=1)
    _back(g, x)


def _moved(g: RandomGraph, x: str) -> str:
    """Select, repeat or reverse rows, up to twice."""
    for _ in range(g.dice.randrange(3)):
        shape = g.shape(x)
        axis, how = g.axis(shape), g.dice.randrange(4)
        if how == 0:
            ends = (0, 1) if g.coin() else (-1, -99)
            bounds = (g.constant([v], np.int64) for v in (*ends, axis, 1 if ends[1] > 0 else -1))
            x = g.node("Slice", x, *bounds)
        elif how == 1:
            x = g.node("Gather", x, g.constant([0] * g.dice.choice((1, 2)), np.int64), axis=axis)
        elif how == 2:
            x = g.node("Expand", x, g.constant([2, *shape], np.int64))
        else:
            x = g.node("Transpose", x, perm=g.dice.sample(range(len(shape)), len(shape)))
    return x


def _few_bits(g: RandomGraph) -> None:
    """Moves before, between and behind casts to formats that most operators do not read."""
    x, dtype = _moved(g, g.need(2, 3)), g.dice.choice(FEW_BITS)
    scale = g.constant(g.dice.choice((0.25, 1.0)))
    casts = dtype in (TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2) and g.coin()
    if casts:  # to integers of four bits onnxruntime rounds, where ONNX truncates
        x = g.node("Cast", x, to=dtype)
    else:
        x = g.node("QuantizeLinear", x, scale, output_dtype=dtype)
    if g.coin():
        x = g.node("Transpose", x, perm=g.dice.sample(range(len(g.shape(x))), len(g.shape(x))))
    x = g.node("Cast", x, to=FLOAT) if casts else g.node("DequantizeLinear", x, scale)
    _moved(g, g.node(g.dice.choice(("Relu", "Neg", "Sigmoid")), x) if g.coin() else x)


def _casts(g: RandomGraph) -> None:
    """Casts of casts, which may lose what the first one lost."""
    x = whole(g)
    for _ in range(g.dice.randrange(1, 3)):
        x = g.node("Cast", x, to=g.dice.choice((*_WHOLE, FLOAT, TensorProto.DOUBLE)))
    _back(g, x)


def _computed_gather(g: RandomGraph) -> None:
    """Rows that an index picks which was computed."""
    x = g.need()
    axis = g.axis(g.shape(x))
    length = g.shape(x)[axis]
    index = g.node("Mod", whole(g, TensorProto.INT64), g.constant(length, np.int64))
    kind = g.dice.choice(("Gather", "OneHot", "GatherND"))
    if kind == "Gather":
        if g.coin(0.3):
            index = g.node("Cast", index, to=TensorProto.INT32)
        g.node(kind, x, index, axis=axis)
    elif kind == "OneHot":
        g.node(kind, index, g.constant(length, np.int64), g.constant([0.0, 1.5]), axis=-1)
    else:
        first = g.node("Mod", index, g.constant(g.shape(x)[0], np.int64))
        g.node(kind, x, g.node("Unsqueeze", first, g.constant([-1], np.int64)))


def _scatter(g: RandomGraph) -> None:
    x = g.need()
    shape = g.shape(x)
    if g.coin():
        axis = g.axis(shape)
        length = shape[axis]
        count = g.dice.randrange(1, length + 1)
        rows = np.array(g.dice.sample(range(length), count)) - (length if g.coin(0.3) else 0)
        dims = [count if i == axis % len(shape) else d for i, d in enumerate(shape)]
        spread = [-1 if i == axis % len(shape) else 1 for i in range(len(shape))]
        every = np.broadcast_to(rows.reshape(spread), dims)
        kind = g.dice.choice(("none", "add", "mul", "max"))
        g.node(
            "ScatterElements",
            x,
            g.constant(every, np.int64),
            g.weights(*dims),
            axis=axis,
            reduction=kind,
        )
        return
    depth = g.dice.randrange(1, len(shape) + 1)
    grid = np.stack(np.meshgrid(*(np.arange(d) for d in shape[:depth]), indexing="ij"), -1)
    places = grid.reshape(-1, depth)
    if g.coin(0.6):
        order = list(range(len(places)))
        g.dice.shuffle(order)
        places = places[order[: g.dice.randrange(1, len(order) + 1)]]
    updates = g.weights(len(places), *shape[depth:])
    g.node(
        "ScatterND",
        x,
        g.constant(places, np.int64),
        updates,
        reduction=g.dice.choice(("none", "add")),
    )


def _assigned_slice(g: RandomGraph) -> None:
    """x[:, a:b] = y, as exporters write it: a ScatterND to the places of a slice."""
    x = g.need(2, 3)
    shape = g.shape(x)
    first = g.dice.randrange(shape[1])
    last = g.dice.choice((shape[1], g.dice.randrange(first, shape[1]) + 1))
    grid = np.stack(np.meshgrid(np.arange(shape[0]), np.arange(first, last), indexing="ij"), -1)
    given = (g.constant([v], np.int64) for v in (first, last, 1))
    part = g.node("Slice", x, *given)
    part = g.node(g.dice.choice(("Relu", "Neg", "Tanh")), part)
    g.node("ScatterND", x, g.constant(grid, np.int64), part)


def _sizes(g: RandomGraph) -> None:
    """Shapes computed from shapes, and what reads them."""
    x = g.need()
    shape = g.shape(x)
    axis = g.dice.randrange(len(shape))
    sizes = g.node("Shape", x, **({"start": axis, "end": axis + 1} if g.coin(0.4) else {}))
    if g.shape(sizes) != (1,):
        sizes = g.node("Gather", sizes, g.constant([axis], np.int64))
    kind = g.dice.choice(("ConstantOfShape", "Range", "Tile", "Slice", "Expand", "scale"))
    size = shape[axis]
    one = g.node("Squeeze", sizes, g.constant([0], np.int64))
    if kind == "ConstantOfShape":
        g.raw(kind, [sizes], (size,))
    elif kind == "Range":
        steps = g.raw(
            kind,
            [g.constant(0, np.int64), one, g.constant(1, np.int64)],
            (size,),
            TensorProto.INT64,
        )
        y = g.node("Cast", steps, to=FLOAT)
        if axis == len(shape) - 1:
            g.node("Add", x, y)
    elif kind == "Expand":
        y = g.need(1)
        if g.shape(y) != (1,):
            raise ValueError("no vector of one")
        g.raw(kind, [y, sizes], (size,))
    elif kind == "Slice":
        half = g.node("Div", sizes, g.constant([2], np.int64))
        if size < 2:
            raise ValueError("nothing is left")
        given = [x, g.constant([0], np.int64), half, g.constant([axis], np.int64)]
        g.raw(kind, given, tuple(size // 2 if i == axis else d for i, d in enumerate(shape)))
    elif kind == "scale":
        g.node("Div", x, g.node("Sqrt", g.node("Cast", one, to=FLOAT)))


def _quantized_product(g: RandomGraph) -> None:
    """Quantised layers, as operators and as QDQ."""
    x = g.need(2, 3)
    k, n = g.shape(x)[-1], g.width()
    rng = np.random.default_rng(g.dice.getrandbits(32))
    dtype = g.dice.choice((np.int8, np.uint8))
    w = g.constant(rng.integers(-9 if dtype is np.int8 else 0, 10, (k, n)), dtype)
    how = g.dice.randrange(3)
    per_column = g.coin() and n > 1
    scale = (
        g.constant(np.full(n, 0.05) * (1 + np.arange(n) % 3)) if per_column else g.constant(0.05)
    )
    zero = g.constant(np.zeros(n), dtype) if per_column else g.constant(0, dtype)
    if how == 0:
        g.node("DynamicQuantizeLinear", x, outputs=3)
        q, s, z = g.nodes[-1].output
        y = g.node("MatMulInteger", q, w, z, zero)
        g.node("Mul", g.node("Cast", y, to=FLOAT), g.node("Mul", s, scale))
        return
    sx, zx = g.constant(0.06), g.constant(g.dice.choice((0, 3, 128)), np.uint8)
    q = g.node("QuantizeLinear", x, sx, zx)
    if how == 1:
        out = g.constant(0.1), g.constant(100, np.uint8)
        y = g.node("QLinearMatMul", q, sx, zx, w, scale, zero, *out)
        g.node("DequantizeLinear", y, *out)
        return
    dq = g.node("DequantizeLinear", q, sx, zx)
    dw = g.node("DequantizeLinear", w, scale, zero, axis=1)
    y = g.node("MatMul", dq, dw)
    if g.coin():
        y = g.node("Add", y, g.weights(n))
    if g.coin():
        y = g.node("Relu", y)
    out = g.constant(0.1), g.constant(g.dice.choice((0, 100)), np.uint8)
    g.node("DequantizeLinear", g.node("QuantizeLinear", y, *out), *out)


def _quantized_conv(g: RandomGraph) -> None:
    x = g.need(4)
    channels, n = g.shape(x)[1], g.width()
    rng = np.random.default_rng(g.dice.getrandbits(32))
    depthwise = g.coin(0.3)
    w = rng.integers(-9, 10, (channels, 1, 1, 1) if depthwise else (n, channels, 1, 1))
    w, n = g.constant(w, np.int8), channels if depthwise else n
    group = channels if depthwise else 1
    sx, zx = g.constant(0.06), g.constant(g.dice.choice((0, 3, 128)), np.uint8)
    q = g.node("QuantizeLinear", x, sx, zx)
    scale = g.constant(0.02 * (1 + np.arange(n) % 3)) if g.coin() else g.constant(0.02)
    zero = g.constant(np.zeros(g.shape(scale)), np.int8)
    pads = [1, 1, 1, 1] if g.coin(0.3) else [0] * 4
    how = g.dice.randrange(3)
    if how == 0:
        y = g.node("ConvInteger", q, w, zx, group=group, pads=pads)
        g.node("Cast", y, to=FLOAT)
    elif how == 1:
        out = g.constant(0.1), g.constant(100, np.uint8)
        bias = [g.constant(rng.integers(-99, 99, n), np.int32)] if g.coin() else []
        y = g.node("QLinearConv", q, sx, zx, w, scale, zero, *out, *bias, group=group, pads=pads)
        g.node("DequantizeLinear", y, *out)
    else:
        dw = g.node("DequantizeLinear", w, scale, zero, axis=0)
        y = g.node("Conv", g.node("DequantizeLinear", q, sx, zx), dw, group=group, pads=pads)
        out = g.constant(0.1), g.constant(100, np.uint8)
        g.node("DequantizeLinear", g.node("QuantizeLinear", y, *out), *out)


def _empty(g: RandomGraph) -> None:
    """A tensor without elements, and something that reads it."""
    x = g.need()
    shape = g.shape(x)
    axis = g.axis(shape)
    given = (g.constant([v], np.int64) for v in (1, 1, axis))
    y = g.node("Slice", x, *given)
    for _ in range(g.dice.randrange(3)):
        how = g.dice.randrange(4)
        if how == 0:
            y = g.node(g.dice.choice(("Relu", "Neg", "Sigmoid")), y)
        elif how == 1:
            y = g.node("Add", y, g.constant(1.0))
        elif how == 2:
            y = g.node("Cast", g.node("Cast", y, to=TensorProto.INT32), to=FLOAT)
        elif len(shape) > 1 and g.shape(y)[-1]:
            y = g.node("MatMul", y, g.weights(g.shape(y)[-1], g.shape(y)[-1]))
    how = g.dice.randrange(3)
    if how == 0:
        g.node("Concat", *g.dice.sample((x, y), 2), axis=axis)
    elif how == 1:
        g.node("Transpose", y, perm=g.dice.sample(range(len(shape)), len(shape)))


def _einsum(g: RandomGraph) -> None:
    x = g.need(2, 3, 4)
    letters = "abcd"[: len(g.shape(x))]
    shape = g.shape(x)
    n = g.width()
    how = g.dice.randrange(4)
    if how == 0:
        g.node(
            "Einsum",
            x,
            g.weights(shape[-1], n),
            equation=f"{letters},{letters[-1]}n->{letters[:-1]}n",
        )
    elif how == 1:
        g.node(
            "Einsum",
            x,
            g.weights(n, shape[-2]),
            equation=f"{letters},n{letters[-2]}->{letters[:-2]}{letters[-1]}n",
        )
    elif how == 2:
        g.node("Einsum", x, equation=f"{letters}->{letters[::-1]}")
    else:
        other = letters.replace(letters[-2], "z")
        g.node("Einsum", x, x, equation=f"{letters},{other}->{letters[:-2]}{letters[-2]}z")


def _other_factors(g: RandomGraph) -> None:
    """Products whose first factor is the constant, or a vector; filters that are computed."""
    x = g.need(1, 2, 3, 4)
    *front, rows, size = (1, *g.shape(x))
    front = front[1:]
    how = g.dice.randrange(6)
    if how == 0:
        y = g.node("MatMul", g.weights(g.width(), rows), x)
    elif how == 1:
        y = g.node("MatMul", g.weights(*front, g.width(), rows), x)
    elif how == 2:
        y = g.node("MatMul", g.weights(rows), x)
    elif how == 3:
        y = g.node("MatMul", x, g.weights(size))
    elif how == 4:
        y = g.node("MatMul", x, g.weights(2, size, g.width()))
    else:
        image = g.weights(2, g.shape(x)[1], *(d + g.dice.randrange(3) for d in g.shape(x)[2:]))
        y = g.node("Conv", image, x)
    if g.coin():
        y = g.node("Add", y, g.weights(*g.shape(y)[-1:]))
    if g.coin(0.3) and g.shape(y):
        y = g.node("Softmax", y, axis=-1)
    if g.coin() and g.shape(y):
        g.node("MatMul", y, g.weights(g.shape(y)[-1], g.width()))


#: How often each is drawn.
TYPE_DRAWS: dict[Maker, float] = {
    _integers: 3,
    _bits: 0.7,
    _truths: 3,
    _integer_reduction: 1.5,
    _other_floats: 3,
    _few_bits: 1.5,
    _casts: 1.5,
    _computed_gather: 2,
    _scatter: 1.5,
    _assigned_slice: 1,
    _sizes: 3,
    _quantized_product: 1.5,
    _quantized_conv: 1.5,
    _empty: 0.4,
    _einsum: 1.5,
    _other_factors: 1.5,
}
