"""What a random graph may grow by: what decoders, detectors and other networks of today repeat."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from .growing import FLOAT, Maker, RandomGraph

IntArray = np.ndarray[Any, np.dtype[np.int64]]


def _int64(g: RandomGraph, *values: int) -> str:
    return g.constant(list(values), np.int64)


def rotated(g: RandomGraph, x: str, cos: str, sin: str, style: int) -> str:
    """Transpose pairs of elements of a tensor's last axis, in one of three spellings."""
    size = g.shape(x)[-1]
    if style == 0:  # rotate_half
        first = g.node("Slice", x, _int64(g, 0), _int64(g, size // 2), _int64(g, -1))
        second = g.node("Slice", x, _int64(g, size // 2), _int64(g, 1 << 62), _int64(g, -1))
        transposed = g.node("Concat", g.node("Neg", second), first, axis=-1)
        return g.node("Add", g.node("Mul", x, cos), g.node("Mul", transposed, sin))
    if style == 1:  # halves
        g.node("Split", x, outputs=2, axis=-1, num_outputs=2)
        a, b = g.nodes[-1].output
    else:  # every second element
        rank = len(g.shape(x))
        a, b = (
            g.node("Slice", x, _int64(g, at), _int64(g, 1 << 62), _int64(g, rank - 1), _int64(g, 2))
            for at in (0, 1)
        )
    left = g.node("Sub", g.node("Mul", a, cos), g.node("Mul", b, sin))
    right = g.node("Add", g.node("Mul", b, cos), g.node("Mul", a, sin))
    if style == 1:
        return g.node("Concat", left, right, axis=-1)
    both = [g.node("Unsqueeze", each, _int64(g, -1)) for each in (left, right)]
    stacked = g.node("Concat", *both, axis=-1)
    return g.node("Reshape", stacked, _int64(g, *g.shape(x)))


def _turns(g: RandomGraph, x: str, positions: IntArray, size: int, wide: int) -> list[str]:
    """Return cosines and sines of the angles of positions: constants, or computed from these."""
    if g.coin():
        turns = np.outer(positions, 0.1 ** np.arange(size // 2))
        turns = np.concatenate([turns, turns], -1)[:, :wide]
        return [g.constant(f(turns)) for f in (np.cos, np.sin)]
    at = g.constant(positions[None], np.int64)
    at = g.node("Cast", g.node("Unsqueeze", at, _int64(g, -1)), to=FLOAT)
    angles = g.node("Mul", at, g.constant(0.1 ** np.arange(size // 2)[None]))
    if wide == size:
        angles = g.node("Concat", angles, angles, axis=-1)
    if g.coin(0.7):  # of the data, so that nothing is constant
        mean = g.node("ReduceMean", x, keepdims=0)
        angles = g.node("Add", angles, g.node("Mul", mean, g.constant(0.1)))
    return [g.node("Unsqueeze", g.node(kind, angles), _int64(g, 1)) for kind in ("Cos", "Sin")]


def _masked(g: RandomGraph, scores: str, positions: IntArray) -> str:
    """Return the scores of queries at these positions, some of which do not see all keys."""
    how = g.dice.randrange(4)
    if not how:
        return scores
    keys = np.arange(positions[-1] + 1)
    allowed = keys <= positions[:, None]
    if how == 2:
        allowed &= keys > positions[:, None] - 3
    mask = np.where(allowed, 0, g.dice.choice((-1e9, -np.inf, -3.4028235e38)))
    if how == 3:
        seen = g.constant(allowed[None, None], bool)
        return g.node("Where", seen, scores, g.constant(-1e9))
    return g.node("Add", scores, g.constant(mask[None, None] if g.coin() else mask))


def _decoder(g: RandomGraph) -> None:
    """Attention with rotary angles, grouped heads, caches that are passed, and a causal mask."""
    x = g.need(3)
    batch, length, width = g.shape(x)
    heads, shared, size = g.dice.choice(((2, 1, 8), (4, 2, 4), (2, 2, 16), (4, 1, 16), (1, 1, 4)))
    past = g.dice.choice((0, 1, 3, 6))
    at = np.arange(past, past + length)
    bias = g.coin(0.3)

    def projected(count: int) -> str:
        y = g.node("MatMul", x, g.weights(width, count * size))
        if bias:
            y = g.node("Add", y, g.weights(count * size))
        y = g.node("Reshape", y, _int64(g, batch, length, count, size))
        return g.node("Transpose", y, perm=[0, 2, 1, 3])

    q, k, v = projected(heads), projected(shared), projected(shared)
    if g.coin(0.7):
        style = g.dice.randrange(3)
        wide = size if style == 0 else size // 2
        cos, sin = _turns(g, x, at, size, wide)
        q, k = rotated(g, q, cos, sin, style), rotated(g, k, cos, sin, style)
    if past:
        caches = [g.input((batch, shared, past, size)) for _ in range(2)]
        k, v = (g.node("Concat", c, new, axis=2) for c, new in zip(caches, (k, v), strict=True))
        g.results.extend((k, v))
    if shared < heads:
        shape = [batch, shared, heads // shared, past + length, size]

        def repeated(y: str) -> str:
            y = g.node("Expand", g.node("Unsqueeze", y, _int64(g, 2)), _int64(g, *shape))
            return g.node("Reshape", y, _int64(g, batch, heads, past + length, size))

        k, v = repeated(k), repeated(v)
    scores = g.node("MatMul", q, g.node("Transpose", k, perm=[0, 1, 3, 2]))
    scale = g.constant(size**-0.5)
    scores = g.node("Mul", scores, scale)
    scores = _masked(g, scores, at)
    weights = g.node("Softmax", scores, axis=-1)
    y = g.node("Transpose", g.node("MatMul", weights, v), perm=[0, 2, 1, 3])
    y = g.node("Reshape", y, _int64(g, batch, length, heads * size))
    g.node("Add", x, g.node("MatMul", y, g.weights(heads * size, width)))


def _last_row(g: RandomGraph) -> None:
    """A few rows alone are read: the last position, or the class token."""
    x = g.need(3)
    _, length, width = g.shape(x)
    y = g.node("MatMul", x, g.weights(width, width))
    y = g.node("Add", y, g.weights(width)) if g.coin() else y
    y = g.node("Add", y, x) if g.coin() else y
    if width >= 4 and g.coin():
        y = g.node("LayerNormalization", y, g.weights(width), g.weights(width))
    y = g.node(g.dice.choice(("Relu", "Identity", "Tanh")), y)
    at = g.dice.choice((0, -1, length - 1))
    how = g.dice.randrange(4)
    if how == 0:
        y = g.node("Gather", y, g.constant(at, np.int64), axis=1)
    elif how == 1:
        y = g.node("Slice", y, _int64(g, at), _int64(g, at + 1 or 1 << 62), _int64(g, 1))
    elif how == 2:
        y = g.node("Gather", y, _int64(g, at, 0), axis=1)
    else:
        y = g.node("Slice", y, _int64(g, 1), _int64(g, 1 << 62), _int64(g, 1))
    y = g.node("MatMul", y, g.weights(width, g.width()))
    if g.coin(0.3):
        g.node("Softmax", y, axis=-1)


def _branches(g: RandomGraph) -> None:
    """Convolutions of one image that are added, with the image itself and norms (RepVGG)."""
    x = g.need(4)
    channels = g.shape(x)[1]
    same = g.coin(0.7)
    n = channels if same else g.width()
    parts: list[str] = []
    for kernel in g.dice.choice(((1, 3), (1, 1), (3, 3), (1,))):
        group = channels if g.coin(0.2) and same else 1
        pads = [kernel // 2] * 4
        w = g.weights(n, channels // group, kernel, kernel)
        y = g.node("Conv", x, w, *([g.weights(n)] if g.coin() else []), pads=pads, group=group)
        if g.coin():
            y = g.node(
                "BatchNormalization",
                y,
                g.weights(n),
                g.weights(n),
                g.weights(n),
                g.constant(np.full(n, 0.7)),
            )
        parts.append(y)
    if same and g.coin():
        y = x
        if g.coin():
            y = g.node(
                "BatchNormalization",
                y,
                g.weights(n),
                g.weights(n),
                g.weights(n),
                g.constant(np.full(n, 0.7)),
            )
        parts.append(y)
    total = parts[0]
    for each in parts[1:]:
        total = g.node(g.dice.choice(("Add", "Add", "Sub")), total, each)
    g.node("Relu", total)


def _split_attention(g: RandomGraph) -> None:
    """Branches of an image are weighted and added over an axis of their own (ResNeSt, SKNet)."""
    x = g.need(4)
    n, c, h, w = g.shape(x)
    radix = g.dice.choice((1, 2, 3))
    if c % radix:
        raise ValueError("no such branches")
    parts = g.node("Reshape", x, _int64(g, n, radix, c // radix, h, w))
    pooled = g.node("ReduceSum", parts, _int64(g, 1), keepdims=0)
    pooled = (
        g.node("GlobalAveragePool", pooled)
        if g.coin()
        else g.node("ReduceMean", pooled, _int64(g, 2, 3))
    )
    y = g.node("Conv", pooled, g.weights(c, c // radix, 1, 1))
    y = g.node("Reshape", y, _int64(g, n, radix, c // radix, 1, 1))
    y = g.node("Softmax", y, axis=1) if g.coin() else g.node("Sigmoid", y)
    kind = g.dice.choice(("ReduceSum", "ReduceSum", "ReduceMean"))
    g.node(kind, g.node("Mul", parts, y), _int64(g, 1), keepdims=0)


def _shuffle(g: RandomGraph) -> None:
    x = g.need(4)
    n, c, h, w = g.shape(x)
    able = [k for k in (1, 2, 3, 4) if c % k == 0]
    groups = g.dice.choice(able)
    y = g.node("Reshape", x, _int64(g, n, groups, c // groups, h, w))
    y = g.node("Transpose", y, perm=[0, 2, 1, 3, 4])
    y = g.node("Reshape", y, _int64(g, n, c, h, w))
    if c > 1 and g.coin():
        g.node("Split", y, _int64(g, c // 2, c - c // 2), outputs=2, axis=1)


def _patches(g: RandomGraph) -> None:
    x = g.need(4)
    n, c, h, w = g.shape(x)
    k = g.dice.choice([k for k in (1, 2, 4) if h % k == w % k == 0])
    wide = g.width()
    y = g.node(
        "Conv",
        x,
        g.weights(wide, c, k, k),
        *([g.weights(wide)] if g.coin() else []),
        strides=[k, k],
        kernel_shape=[k, k],
    )
    y = g.node("Reshape", y, _int64(g, n, wide, -1))
    y = g.node("Transpose", y, perm=[0, 2, 1])
    if g.coin():
        token = g.node("Expand", g.weights(1, 1, wide), _int64(g, n, 1, wide))
        y = g.node("Concat", token, y, axis=1)
        y = g.node("Add", y, g.weights(*g.shape(y)))
    if wide >= 4:
        g.node("LayerNormalization", y, g.weights(wide), g.weights(wide))


def _merged(g: RandomGraph) -> None:
    """Several products of one tensor, one of which others read, too."""
    x = g.need(2, 3)
    k = g.shape(x)[-1]
    shared = g.weights(k, g.width())
    parts: list[str] = []
    for _ in range(g.dice.randrange(2, 4)):
        w = shared if g.coin(0.3) else g.weights(k, g.width())
        y = g.node("MatMul", x, w)
        parts.append(g.node("Add", y, g.weights(g.shape(y)[-1])) if g.coin() else y)
    how = g.dice.randrange(3)
    if how == 0:
        g.node("Concat", *parts, axis=-1)
    elif how == 1 and g.shape(parts[0]) == g.shape(parts[1]):
        g.node("Add", parts[0], parts[1])
    else:
        for each in parts:
            g.node(g.dice.choice(("Relu", "Sigmoid")), each)


def _topk(g: RandomGraph) -> None:
    """The best of many, and what lies at their places."""
    x = g.need(2, 3)
    axis = len(g.shape(x)) - 1
    length = g.shape(x)[-1]
    count = g.dice.randrange(1, length + 1)
    g.node("TopK", x, _int64(g, count), outputs=2, axis=g.dice.choice((axis, -1)))
    best, at = g.nodes[-1].output
    if g.coin():
        g.node("Softmax", best, axis=-1)
    if g.coin():
        g.node("GatherElements", x, at, axis=axis)
    else:
        g.node("Gather", g.weights(length, 3), at, axis=0)


def _windows(g: RandomGraph) -> None:
    """Attention inside of windows, of five axes, with a bias (Swin, MaxViT)."""
    x = g.need(3)
    n, length, c = g.shape(x)
    able = [k for k in (1, 2, 4) if length % k == 0]
    size = length // g.dice.choice(able)
    if c % 2:
        raise ValueError("no two heads")
    parts = [
        g.node(
            "Transpose",
            g.node(
                "Reshape",
                g.node("MatMul", x, g.weights(c, c)),
                _int64(g, n, length // size, size, 2, c // 2),
            ),
            perm=[0, 1, 3, 2, 4],
        )
        for _ in range(3)
    ]
    q, k, v = parts
    scores = g.node("MatMul", q, g.node("Transpose", k, perm=[0, 1, 2, 4, 3]))
    scores = g.node("Mul", scores, g.constant((c // 2) ** -0.5))
    if g.coin():
        scores = g.node(
            "Add",
            scores,
            g.weights(
                *g.dice.choice(((2, size, size), (size, size), (length // size, 1, size, size)))
            ),
        )
    y = g.node("MatMul", g.node("Softmax", scores, axis=-1), v)
    y = g.node("Reshape", g.node("Transpose", y, perm=[0, 1, 3, 2, 4]), _int64(g, n, length, c))
    g.node("Add", x, g.node("MatMul", y, g.weights(c, c)))


def _multihead(g: RandomGraph) -> None:
    """nn.MultiheadAttention: rows are transposed, heads are batches."""
    x = g.need(3)
    batch, length, c = g.shape(x)
    heads = g.dice.choice([h for h in (1, 2, 4) if c % h == 0])
    transposed = g.node("Transpose", x, perm=[1, 0, 2])
    if g.coin():
        y = g.node("Add", g.node("MatMul", transposed, g.weights(c, 3 * c)), g.weights(3 * c))
        y = g.node("Reshape", y, _int64(g, length, batch, 3, c))
        y = g.node("Transpose", g.node("Unsqueeze", y, _int64(g, 0)), perm=[3, 1, 2, 0, 4])
        y = g.node("Squeeze", y, _int64(g, 3))
        parts = [g.node("Gather", y, g.constant(i, np.int64), axis=0) for i in range(3)]
    else:
        parts = [
            g.node("Add", g.node("MatMul", transposed, g.weights(c, c)), g.weights(c))
            for _ in range(3)
        ]
    q, k, v = (
        g.node(
            "Transpose",
            g.node("Reshape", each, _int64(g, length, batch * heads, c // heads)),
            perm=[1, 0, 2],
        )
        for each in parts
    )
    q = g.node("Mul", q, g.constant((c // heads) ** -0.5))
    weights = g.node(
        "Softmax", g.node("MatMul", q, g.node("Transpose", k, perm=[0, 2, 1])), axis=-1
    )
    y = g.node("Transpose", g.node("MatMul", weights, v), perm=[1, 0, 2])
    y = g.node(
        "Reshape", y, _int64(g, length * batch, c) if g.coin() else _int64(g, length, batch, c)
    )
    if len(g.shape(y)) == 2:
        y = g.node("Gemm", y, g.weights(c, c), g.weights(c), transB=1)
        y = g.node("Reshape", y, _int64(g, length, batch, c))
    else:
        y = g.node("MatMul", y, g.weights(c, c))
    g.node("Transpose", y, perm=[1, 0, 2])


def _pair_norm(g: RandomGraph) -> None:
    """A norm behind a sum that is also passed on, and BatchNormalization of rows."""
    x = g.need(2, 3)
    c = g.shape(x)[-1]
    if c < 4:
        raise ValueError("a norm of two elements is a sign")
    y = g.node("Add", x, g.node("MatMul", x, g.weights(c, c)))
    if g.coin():
        g.node("LayerNormalization", y, g.weights(c), g.weights(c))
    elif g.coin():
        squared = g.node("ReduceMean", g.node("Pow", y, g.constant(2.0)), _int64(g, -1))
        root = g.node("Sqrt", g.node("Add", squared, g.constant(1e-6)))
        g.node("Mul", g.weights(c), g.node("Div", y, root))
    else:
        norm = g.node("LpNormalization", y, axis=-1)
        g.node("MatMul", norm, g.weights(c, g.width()))
    if g.coin():
        g.node("Mul", y, g.node("Sigmoid", y))


def _lookup(g: RandomGraph) -> None:
    """Embeddings of numbers that are given, with positions."""
    size, count = g.width(), g.dice.choice((5, 16))
    batch, length = g.dice.choice((1, 2)), g.dice.choice((1, 3, 8))
    ids = g.input((batch, length), TensorProto.INT64, range(count))
    y = g.node("Gather", g.weights(count, size), ids, axis=0)
    if g.coin():
        y = g.node("Add", y, g.weights(length, size))
    mask = g.node("Cast", g.node("Greater", ids, g.constant(1, np.int64)), to=FLOAT)
    if g.coin():
        wide = g.node("Mul", g.node("Sub", g.constant(1.0), mask), g.constant(-1e4))
        wide = g.node("Unsqueeze", wide, _int64(g, 1))
        scores = g.node("MatMul", y, g.node("Transpose", y, perm=[0, 2, 1]))
        g.node("MatMul", g.node("Softmax", g.node("Add", scores, wide), axis=-1), y)
    else:
        g.node("Mul", y, g.node("Unsqueeze", mask, _int64(g, -1)))


#: How often each is drawn.
DECODERS: dict[Maker, float] = {
    _decoder: 2,
    _last_row: 1.5,
    _branches: 1.5,
    _split_attention: 1,
    _shuffle: 1,
    _patches: 1,
    _merged: 1.5,
    _topk: 1,
    _windows: 1,
    _multihead: 1,
    _pair_norm: 1,
    _lookup: 1,
}
