"""What a random graph may grow by: moves that kernels do while they read or store."""

from __future__ import annotations

from math import prod

import numpy as np

from .growing import Maker, RandomGraph
from .motifs_rows import layer

_UNARY = ("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Softplus")


def _rows(g: RandomGraph, heads: int = 1) -> str:
    """Add an input of rows, whose columns are those of heads."""
    width = heads * g.dice.choice((2, 4, 6, 8, 16))
    return g.input((g.dice.choice((1, 2, 3)), g.dice.choice((1, 2, 4, 5, 8)), width))


def _image(g: RandomGraph) -> str:
    return g.input((g.dice.choice((1, 2)), g.width(), g.dice.choice((4, 6)), g.dice.choice((4, 8))))


def _chain(g: RandomGraph, x: str, most: int = 3) -> str:
    """Apply some elementwise operators, some of them with constants by column."""
    for _ in range(g.dice.randrange(1, most + 1)):
        if g.coin():
            x = g.node(g.dice.choice(_UNARY), x)
        else:
            size = g.dice.choice(((), (g.shape(x)[-1],)))
            x = g.node(g.dice.choice(("Add", "Mul", "Sub")), x, g.weights(*size))
    return x


def _sinks(g: RandomGraph) -> None:
    """Attention with a further score for each head, as PyTorch exports gpt-oss."""
    heads, size = g.dice.choice((1, 2, 4)), g.dice.choice((4, 8))
    batch, length = g.dice.choice((1, 2)), g.dice.choice((1, 3, 6))
    q, k, v = (g.input((batch, heads, length, size)) for _ in range(3))
    scores = g.node("MatMul", q, g.node("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.node("Mul", scores, g.constant(size**-0.5))
    if g.coin():
        mask = np.triu(np.full((length, length), g.dice.choice((-1e4, -np.inf))), 1)
        scores = g.node("Add", scores, g.constant(mask))
    sinks = g.weights(1, heads, 1, 1)
    sinks = g.node("Expand", sinks, g.ints(batch, heads, length, 1))
    ends = (scores, sinks) if g.coin(0.8) else (sinks, scores)
    both = g.node("Concat", *ends, axis=-1)
    if g.coin(0.6):
        both = g.node("Sub", both, g.node("ReduceMax", both, g.ints(-1), keepdims=1))
    chances = g.node("Softmax", both, axis=-1)
    first = g.dice.choice((0, 0, 0, 1))
    part = g.node("Slice", chances, g.ints(first), g.ints(first + length), g.ints(-1))
    y = g.node("Transpose", g.node("MatMul", part, v), perm=[0, 2, 1, 3])
    g.node("Reshape", y, g.ints(batch, length, heads * size))


def _rotated_pairs(g: RandomGraph) -> None:
    """Pairs of columns times matrices of 2 by 2, rotations or any others (Perception Encoder)."""
    heads = g.dice.choice((1, 2, 4))
    x = _rows(g, heads)
    batch, length, width = g.shape(x)
    size = width // heads
    x = g.node("Reshape", layer(g, x, width), g.ints(batch, length, heads, size))
    if is_rotation := g.coin(0.7):
        x = g.node("Transpose", x, perm=[0, 2, 1, 3])
    pairs = g.node("Reshape", x, g.ints(*g.shape(x)[:3], size // 2, 2, *([1] if g.coin() else [])))
    angles = np.outer(np.arange(length), g.dice.choice((1.0, 0.1)) ** np.arange(size // 2))
    cos, sin = np.cos(angles), np.sin(angles)
    if g.coin(0.15):
        sin = 2 * sin
    matrices = np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], -2)
    shape = (length, size // 2, 2, 2) if is_rotation else (length, 1, size // 2, 2, 2)
    matrices = g.constant(matrices.reshape(shape))
    if g.shape(pairs)[-1] == 1:
        y = g.node("MatMul", matrices, pairs)
    else:
        row = g.node("Unsqueeze", pairs, g.ints(-2))
        y = g.node("ReduceSum", g.node("Mul", matrices, row), g.ints(-1), keepdims=0)
    y = g.node("Reshape", y, g.ints(*g.shape(x)))
    if g.coin():
        g.node("MatMul", y, g.node("Transpose", y, perm=[0, 1, 3, 2]))


def _gated_heads(g: RandomGraph) -> None:
    """Heads times a gate, or divided by their length, in front of a layer or behind attention."""
    heads = g.dice.choice((1, 2, 4))
    x = _rows(g, heads)
    batch, length, width = g.shape(x)
    y = g.node("Reshape", layer(g, x, width), g.ints(batch, length, heads, width // heads))
    kind = g.dice.choice(("gate", "numbers", "length", "norm"))
    if kind == "gate":
        gate = g.node("Sigmoid", layer(g, x, heads))
        y = g.node("Mul", y, g.node("Unsqueeze", gate, g.ints(-1)))
    elif kind == "numbers":
        y = g.node("Mul", y, g.weights(heads, 1))
    elif kind == "length":
        total = g.node("ReduceSum", g.node("Mul", y, y), g.ints(-1), keepdims=1)
        y = g.node("Div", y, g.node("Sqrt", g.node("Add", total, g.constant(1e-5))))
    else:
        y = g.node("LayerNormalization", y, g.weights(width // heads), axis=-1)
    if g.coin(0.4):
        y = g.node("Transpose", y, perm=[0, 2, 1, 3])
        y = g.node("Transpose", g.node("Relu", y), perm=[0, 2, 1, 3])
    layer(g, g.node("Reshape", y, g.ints(batch, length, width)), g.width())


def _columns(g: RandomGraph) -> None:
    """Numbers that are computed of single columns, stacked (quaternions, boxes)."""
    x = _rows(g)
    batch, length, width = g.shape(x)
    g.node("Split", x, g.ints(*[1] * width), outputs=width, axis=-1)
    columns = list(g.nodes[-1].output)
    found: list[str] = []
    for _ in range(g.dice.choice((2, 3, 4))):
        y = g.dice.choice(columns)
        for _ in range(g.dice.randrange(1, 4)):
            other = g.dice.choice((*columns, *found))
            y = g.node(g.dice.choice(("Add", "Mul", "Sub", "Max")), y, other)
        found.append(y)
    if g.coin():
        g.node("Concat", *found, axis=-1)
        return
    flat = [g.node("Squeeze", y, g.ints(-1)) for y in found]
    stack = [g.node("Unsqueeze", y, g.ints(2)) for y in flat]
    y = g.node("Concat", *stack, axis=2)
    if len(found) == 4:
        g.node("Reshape", y, g.ints(batch, length, 2, 2))


def _cut_anew(g: RandomGraph) -> None:
    """Parts of rows that views cut into rows of another length: no strides have their places."""
    batch, length, count = g.dice.choice((1, 2, 5)), g.dice.choice((4, 6)), g.dice.choice((2, 3))
    width = g.dice.choice((4, 8, 16, 20, 32))
    x = g.input((batch, length, count * width))
    g.node("Split", x, g.ints(*[width] * count), outputs=count, axis=2)
    part = g.dice.choice(list(g.nodes[-1].output))
    elements = batch * length * width
    heads = g.dice.choice([n for n in (1, 2, 4, 5) if elements % n == 0])
    rows = g.dice.choice([n for n in (2, 3, 4, 6) if elements // heads % n == 0])
    y = g.node("Reshape", part, g.ints(rows, heads, elements // heads // rows))
    kind = g.dice.choice(("product", "norm", "sum", "chain"))
    if g.coin(0.7):
        y = g.node("Transpose", y, perm=g.dice.choice(([1, 0, 2], [1, 2, 0], [0, 2, 1])))
    if kind == "product":
        a, b = g.shape(y)[0], g.shape(y)[1]
        g.node("MatMul", g.input((a, g.dice.choice((3, 16, 17)), b)), y)
    elif kind == "norm":
        g.node("LayerNormalization", y, g.weights(g.shape(y)[-1]), axis=-1)
    elif kind == "sum":
        g.node("ReduceMean", y, g.ints(g.dice.randrange(3)), keepdims=0)
    else:
        _chain(g, y)


def _stored_transposed(g: RandomGraph) -> None:
    """Chains whose results are transposed, cut or joined: stored where others read them."""
    x = g.any(3, 4) if g.coin(0.3) else None
    x = x or (
        g.input((2, g.dice.choice((3, 8)), 4, g.dice.choice((4, 6)))) if g.coin() else _rows(g)
    )
    y = _chain(g, x)
    rank = len(g.shape(y))
    perm = list(range(rank))
    g.dice.shuffle(perm)
    z = g.node("Transpose", y, perm=perm)
    if g.coin(0.3):
        _chain(g, y)
    if g.coin():
        z = g.node("Reshape", z, g.ints(*g.factors(prod(g.shape(z)))))
    if g.coin():
        _chain(g, z)


def _reduced_moves(g: RandomGraph) -> None:
    """Sums, means and maxima of what is gathered, unfolded, resized, padded or repeated."""
    x = _image(g)
    n, c, h, w = g.shape(x)
    kind = g.dice.choice(("gather", "unfold", "resize", "pad", "expand"))
    if kind == "gather":
        places = [g.dice.randrange(-w, w) for _ in range(g.dice.choice((1, 2, 5)))]
        y = g.node("Gather", x, g.ints(*places), axis=3)
    elif kind == "unfold":
        k = g.dice.choice((2, 3))
        rows = g.constant(np.arange(k)[:, None] + np.arange(h - k + 1), np.int64)
        columns = g.constant(np.arange(k)[:, None] + np.arange(w - k + 1), np.int64)
        y = g.node("Gather", g.node("Gather", x, rows, axis=2), columns, axis=4)
    elif kind == "resize":
        mode, sizes = (
            g.dice.choice(("nearest", "linear")),
            g.ints(n, c, 2 * h, g.dice.choice((w, 3))),
        )
        y = g.node("Resize", x, "", "", sizes, mode=mode)
    elif kind == "pad":
        mode = g.dice.choice(("constant", "edge", "reflect"))
        y = g.node("Pad", x, g.ints(0, 0, 1, 2, 0, 0, 1, 0), mode=mode)
    else:
        y = g.node("Expand", g.node("Unsqueeze", x, g.ints(2)), g.ints(n, c, 3, h, w))
    if g.coin():
        y = _chain(g, y, 2)
    rank = len(g.shape(y))
    axes = sorted(g.dice.sample(range(1, rank), g.dice.randrange(1, rank - 1)))
    operator = g.dice.choice(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2", "ReduceMin"))
    z = g.node(operator, y, g.ints(*axes), keepdims=int(g.coin()))
    if g.coin(0.3):
        g.node("ReduceMax", y, g.ints(*axes), keepdims=1)
    if g.coin(0.3):
        _chain(g, z)


def _equal_elements(g: RandomGraph) -> None:
    """A part of a tensor is assigned one number, or another tensor (masks of windows)."""
    n, m = g.dice.choice((4, 6)), g.dice.choice((4, 5))
    x = g.input((n, m))
    first, count = g.dice.randrange(n - 1), g.dice.choice((1, 2))
    places = np.arange(first, min(first + count, n))
    if g.coin():
        updates = g.constant(np.full((len(places), m), g.dice.choice((0.0, 1.0, -1e4))))
        reduction = g.dice.choice(("none", "none", "add", "mul"))
        g.node("ScatterND", x, g.constant(places[:, None], np.int64), updates, reduction=reduction)
        return
    index = np.repeat(places[:, None], m, 1)
    if g.coin(0.2):
        index[0, 0] = n - 1
    filled = g.node("Expand", g.weights(1), g.ints(len(places), m))
    y = g.node("ScatterElements", x, g.constant(index, np.int64), filled, axis=0)
    g.node("Add", y, x)


def _weighted(g: RandomGraph) -> None:
    """Sums of tensors times numbers, which branches compute."""
    x = _rows(g)
    terms = [layer(g, x, g.shape(x)[-1]) for _ in range(g.dice.choice((2, 3, 4)))]
    weights = g.weights(len(terms)) if g.coin() else g.input((len(terms),))
    if g.coin():
        weights = g.node("Softmax", weights, axis=0)
    total = ""
    for i, term in enumerate(terms):
        part = g.node("Mul", term, g.node("Gather", weights, g.constant(i, np.int64), axis=0))
        total = g.node("Add", total, part) if total else part
    if g.coin():
        g.node("Relu", total)


#: How often each is drawn.
MOVES: dict[Maker, float] = {
    _sinks: 1,
    _rotated_pairs: 1,
    _gated_heads: 1,
    _columns: 1,
    _cut_anew: 1.5,
    _stored_transposed: 1,
    _reduced_moves: 1.5,
    _equal_elements: 0.7,
    _weighted: 0.7,
}
