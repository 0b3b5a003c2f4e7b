"""What a random graph may grow by: scans with neighbours, norms of rows and of heads, branches."""

from __future__ import annotations

import numpy as np

from .growing import Maker, RandomGraph
from .motifs_decoders import rotated
from .motifs_rows import layer, projected

_UNARY = ("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Softplus", "Exp", "Log")


def _rows(g: RandomGraph) -> str:
    width = g.dice.choice((3, 4, 8, 16, 33))
    return g.input((g.dice.choice((1, 2, 3)), g.dice.choice((1, 4, 7, 32)), width))


def _near(g: RandomGraph, x: str) -> str:
    """Apply an elementwise operator, alone or with another tensor."""
    other = g.dice.choice(((), g.shape(x), g.shape(x)[-1:], (*g.shape(x)[:-1], 1), (1,)))
    kind = g.dice.choice(("unary", "constant", "constant", "input", "itself"))
    if kind == "unary":
        return g.node(g.dice.choice(_UNARY), g.node("Sigmoid", x))
    operands = [
        x,
        {"constant": g.weights, "input": lambda *s: g.input(s)}.get(kind, lambda *_: x)(*other),
    ]
    g.dice.shuffle(operands)
    return g.node(g.dice.choice(("Add", "Mul", "Sub", "Max")), *operands)


def _scans(g: RandomGraph) -> None:
    """Cumulative sums with elementwise operators before, between and behind (state spaces)."""
    x = g.any(2, 3) if g.coin(0.2) else None
    x = x or _rows(g)
    rank, axis = len(g.shape(x)), g.axis(g.shape(x))
    if g.coin(0.3):
        perm = list(range(rank))
        g.dice.shuffle(perm)
        x = g.node("Transpose", x, perm=perm)
    for _ in range(g.dice.choice((1, 1, 2, 3))):
        for _ in range(g.dice.randrange(3)):
            x = _near(g, x)
        at = g.constant(axis if g.coin(0.8) else g.axis(g.shape(x)), np.int64)
        y = g.node("CumSum", x, at, exclusive=int(g.coin(0.3)), reverse=int(g.coin(0.3)))
        x = g.node("Add", x, y) if g.coin(0.3) else y
    for _ in range(g.dice.randrange(3)):
        x = _near(g, x)
    kind = g.dice.choice(("", "", "reduced", "cut", "cast", "mask"))
    if kind == "reduced":
        g.node(g.dice.choice(("ReduceSum", "ReduceMax")), x, g.ints(g.axis(g.shape(x))))
    elif kind == "cut":
        g.node("Slice", x, g.ints(g.dice.choice((0, -1))), g.ints(2**31), g.ints(axis))
    elif kind == "mask":
        g.node("Where", g.node("Greater", x, g.constant(0.0)), x, g.constant(0.0))


def _counts(g: RandomGraph) -> None:
    """Positions that are counted: cumulative sums of integers, cast from a mask."""
    batch, length = g.dice.choice((1, 2)), g.dice.choice((1, 5, 8))
    mask = g.input((batch, length), 7, range(2))
    y = g.node("CumSum", mask, g.constant(1, np.int64), exclusive=int(g.coin(0.3)))
    y = g.node("Sub", g.node("Mul", y, mask) if g.coin() else y, g.constant(1, np.int64))
    y = g.node("Max", y, g.constant(0, np.int64))
    table = g.weights(length, g.width())
    g.node("Gather", table, y, axis=0)


def _norms_of_rows(g: RandomGraph) -> None:
    """Layer normalizations whose scale or shift differs from row to row, and what follows."""
    x = _rows(g)
    shape = g.shape(x)
    axis = g.dice.choice((-1, -1, 2, 1, -2))
    one = (shape[-1:], shape, shape[1:], (1, shape[1], 1), (shape[0], 1, 1), (1,), (1, 1, shape[2]))
    scale, shift = g.dice.choice(one), g.dice.choice((*one, None))
    given = [
        g.input(size) if g.coin(0.3) else g.weights(*size)
        for size in (scale, *([shift] if shift else []))
    ]
    if g.coin():
        x = g.node("Add", x, layer(g, x, shape[-1]))
    outputs = g.dice.choice((1, 1, 1, 3))
    y = g.node("LayerNormalization", x, *given, axis=axis, outputs=outputs)
    if g.coin():
        layer(g, y, g.width())


def _unit(g: RandomGraph, x: str) -> str:
    """Normalize the last axis: RMS or LayerNormalization, spelled or the operator."""
    size = g.shape(x)[-1]
    scale = g.weights(size)
    if g.coin(0.3):
        return g.node("LayerNormalization", x, scale, *([g.weights(size)] if g.coin() else []))
    square = g.node("Mul", x, x) if g.coin() else g.node("Pow", x, g.constant(2.0))
    mean = g.node("ReduceMean", square, g.ints(-1), keepdims=1)
    root = g.node("Sqrt", g.node("Add", mean, g.constant(g.dice.choice((1e-5, 1e-6)))))
    y = g.node("Div", x, root) if g.coin() else g.node("Mul", x, g.node("Reciprocal", root))
    return g.node("Mul", y, scale)


def _normalized_rotated(g: RandomGraph) -> None:
    """Queries and keys that are normalized and rotated, in either order (Qwen3, OLMo 2)."""
    heads, groups = g.dice.choice(((1, 1), (2, 2), (4, 2), (4, 1)))
    size, x = g.dice.choice((4, 8, 16)), _rows(g)
    batch, length, _ = g.shape(x)
    style, before = g.dice.randrange(3), g.coin(0.7)
    angles = np.outer(np.arange(length), 10.0 ** -np.arange(size // 2))
    angles = np.tile(angles, 2) if style == 0 else angles
    lead = g.dice.choice(((), (1, 1)))
    cos, sin = (g.constant(f(angles).reshape(*lead, *angles.shape)) for f in (np.cos, np.sin))

    def heads_of(count: int) -> str:
        """Return what is multiplied, [batch, count, length, size]."""
        if before and g.coin(0.4):  # all heads at once
            y = _unit(g, layer(g, x, count * size, biased=0.2))
            y = g.node("Reshape", y, g.ints(batch, length, count, size))
            y = g.node("Transpose", y, perm=[0, 2, 1, 3])
        elif before and g.coin():
            y = g.node("Reshape", layer(g, x, count * size), g.ints(batch, length, count, size))
            y = g.node("Transpose", _unit(g, y), perm=[0, 2, 1, 3])
        else:
            y = projected(g, x, count, size)
            y = _unit(g, y) if before else y
        y = rotated(g, y, cos, sin, style)
        return y if before else _unit(g, y)

    q, k = heads_of(heads), heads_of(groups)
    if groups != heads:
        k = g.node("Unsqueeze", k, g.ints(2))
        k = g.node("Expand", k, g.ints(batch, groups, heads // groups, length, size))
        k = g.node("Reshape", k, g.ints(batch, heads, length, size))
    scores = g.node("MatMul", q, g.node("Transpose", k, perm=[0, 1, 3, 2]))
    if g.coin():
        v = projected(g, x, heads, size)
        y = g.node("MatMul", g.node("Softmax", scores, axis=-1), v)
        y = g.node("Transpose", y, perm=[0, 2, 1, 3])
        g.node("Reshape", y, g.ints(batch, length, heads * size))


def _runs_of_branches(g: RandomGraph) -> None:
    """Branches of which some next to each other are equal, joined (bands of frequencies)."""
    widths = [w for w in g.dice.sample((1, 2, 3, 4), 2) for _ in range(g.dice.choice((2, 3, 4)))]
    if g.coin(0.3):
        g.dice.shuffle(widths)
    rank3, total = g.coin(), sum(widths)
    x = g.input((2, g.dice.choice((1, 5)), total) if rank3 else (g.dice.choice((1, 3)), total))
    size, norm = g.dice.choice((4, 8)), g.dice.choice(("", "unit", "layer"))
    act = g.dice.choice(("", "Relu", "Tanh"))
    g.node("Split", x, g.ints(*widths), outputs=len(widths), axis=-1)
    found: list[str] = []
    for part in list(g.nodes[-1].output):
        y = part
        if norm and g.shape(y)[-1] > 1:
            y = (
                _unit(g, y)
                if norm == "unit"
                else g.node("LayerNormalization", y, g.weights(g.shape(y)[-1]))
            )
        y = layer(g, y, size, biased=1)
        found.append(g.node(act, y) if act else y)
    if g.coin(0.15):
        found.append(found[0])
    if rank3 and g.coin():
        found = [g.node("Unsqueeze", y, g.ints(2)) for y in found]
        g.node("Concat", *found, axis=2)
    else:
        g.node("Concat", *found, axis=-1)


#: How often each is drawn.
SCANS: dict[Maker, float] = {
    _scans: 2,
    _counts: 0.5,
    _norms_of_rows: 1,
    _normalized_rotated: 1.5,
    _runs_of_branches: 1,
}
