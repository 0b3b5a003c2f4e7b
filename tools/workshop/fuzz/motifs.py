"""What a random graph may grow by: groups of nodes that rewrites look for.

Their details are random, so that they appear whole, nearly whole, and with others reading from
their middle.
"""

from __future__ import annotations

import numpy as np

from .growing import FLOAT, Maker, RandomGraph, swapped


def _attention(g: RandomGraph) -> None:
    """Attention of some heads over a tensor, or over two, in one of its many spellings."""
    x = g.need(3)
    batch, length, width = g.shape(x)
    heads, size = g.dice.choice(((1, 4), (2, 4), (3, 2), (2, 8), (2, 16), (1, 64)))
    context = g.need(3) if g.coin(0.2) else x
    if g.shape(context)[0] != batch:
        context = x
    keys = g.shape(context)[1]

    def projected(of: str, rows: int) -> str:
        y = g.node("MatMul", of, g.weights(g.shape(of)[-1], heads * size))
        if g.coin():
            y = g.node("Add", y, g.weights(heads * size))
        return g.node("Reshape", y, g.constant([batch, rows, heads, size], np.int64))

    q = g.node("Transpose", projected(x, length), perm=[0, 2, 1, 3])
    k = projected(context, keys)
    k = (
        g.node("Transpose", k, perm=[0, 2, 3, 1])
        if g.coin()
        else g.node("Transpose", g.node("Transpose", k, perm=[0, 2, 1, 3]), perm=[0, 1, 3, 2])
    )
    v = g.node("Transpose", projected(context, keys), perm=[0, 2, 1, 3])
    scale = g.dice.choice((size**-0.5, 1.0, 0.3))
    where = g.dice.randrange(4)
    if where == 0:
        q = g.node("Mul", q, g.constant(scale))
    elif where == 1:
        q, k = (g.node("Mul", each, g.constant(scale**0.5)) for each in (q, k))
    scores = g.node("MatMul", q, k)
    if where == 2:
        scores = g.node("Div", scores, g.constant(1 / scale))
    if g.coin(0.4):
        mask = g.dice.choice(
            ((length, keys), (1, 1, length, keys), (batch, 1, 1, keys), (heads, 1, 1))
        )
        if g.coin():
            scores = g.node("Add", scores, g.weights(*mask))
        else:
            allowed = g.constant(
                np.random.default_rng(g.dice.getrandbits(32)).random(mask) < 0.7, bool
            )
            scores = g.node("Where", allowed, scores, g.constant(g.dice.choice((-1e9, -65504.0))))
    weights = g.node("Softmax", scores, axis=g.dice.choice((-1, 3)))
    y = g.node("Transpose", g.node("MatMul", weights, v), perm=[0, 2, 1, 3])
    y = g.node("Reshape", y, g.constant([batch, -1, heads * size], np.int64))
    y = g.node("MatMul", y, g.weights(heads * size, width))
    if g.coin(0.7):
        g.node("Add", y, x)


def _gate(g: RandomGraph) -> None:
    """A product with an activation of itself or of its other half, as feed-forward blocks have."""
    x = g.need(2, 3)
    wide = g.width()
    y = g.node("MatMul", x, g.weights(g.shape(x)[-1], 2 * wide))
    if g.coin(0.4):
        other = g.node("MatMul", x, g.weights(g.shape(x)[-1], 2 * wide))
    else:
        sizes = g.constant([wide, wide], np.int64)
        g.node("Split", y, sizes, outputs=2, axis=-1)
        y, other = g.nodes[-1].output[0], g.nodes[-1].output[1]
    kind = g.dice.choice(("Sigmoid", "Gelu", "Silu", "Relu"))
    active = g.node("Mul", y, g.node("Sigmoid", y)) if kind == "Silu" else g.node(kind, y)
    g.node("Mul", *((active, other) if g.coin() else (other, active)))


def _spelled_gelu(g: RandomGraph) -> None:
    x = g.need()
    erf = g.node("Erf", g.node("Div", x, g.constant(2.0**0.5)))
    one = g.node("Add", erf, g.constant(1.0))
    if g.coin():
        g.node("Mul", g.node("Mul", x, one), g.constant(0.5))
    else:
        g.node("Mul", g.node("Mul", x, g.constant(0.5)), one)


def _squeeze_excite(g: RandomGraph) -> None:
    x = g.need(4)
    channels = g.shape(x)[1]
    y = (
        g.node("GlobalAveragePool", x)
        if g.coin()
        else g.node("ReduceMean", x, g.constant([2, 3], np.int64), keepdims=1)
    )
    y = g.node("Relu", g.node("Conv", y, g.weights(2, channels, 1, 1), g.weights(2)))
    y = g.node("Conv", y, g.weights(channels, 2, 1, 1))
    y = g.node(g.dice.choice(("Sigmoid", "HardSigmoid")), y)
    g.node("Mul", *((x, y) if g.coin() else (y, x)))


def _heads_and_back(g: RandomGraph) -> None:
    """Windows are cut out, computed with, and put back, as in Swin."""
    x = g.need(4)
    n, h, w, c = g.shape(x)
    rows, columns = (2 if size % 2 == 0 else 1 for size in (h, w))
    shape = [n, h // rows, rows, w // columns, columns, c]
    y = g.node(
        "Transpose", g.node("Reshape", x, g.constant(shape, np.int64)), perm=[0, 1, 3, 2, 4, 5]
    )
    y = g.node("Reshape", y, g.constant([-1, rows * columns, c], np.int64))
    y = g.node("MatMul", y, g.weights(c, c)) if g.coin() else g.node("Softmax", y, axis=-1)
    back = [n, h // rows, w // columns, rows, columns, c]
    y = g.node(
        "Transpose", g.node("Reshape", y, g.constant(back, np.int64)), perm=[0, 1, 3, 2, 4, 5]
    )
    g.node("Reshape", y, g.constant([n, h, w, c], np.int64))


def _with_itself(g: RandomGraph) -> None:
    """A tensor is both operands of a node, or stands beside itself."""
    x = g.need(2, 3, 4)
    rank, size = len(g.shape(x)), g.shape(x)[-1]
    how = g.dice.randrange(5)
    if how == 0:
        x = g.node("MatMul", x, g.weights(size, size))
    elif how == 1 and rank == 4:
        channels = g.shape(x)[1]
        x = g.node("Conv", x, g.weights(channels, channels, 1, 1), g.weights(channels))
    elif how == 2:
        x = g.node(g.dice.choice(("Relu", "Sigmoid", "Neg")), x)
    elif how == 3 and size >= 4:
        both = g.weights(size)
        x = g.node("LayerNormalization", x, both, both)
    elif rank == 4:
        x = g.node("Transpose", x, perm=[0, 2, 3, 1])
    shape = g.shape(x)
    kind = g.dice.choice(
        ("Add", "Add", "Sub", "Mul", "Max", "Where", "Concat", "square", "Sum", "Equal", "scatter")
    )
    if kind == "Where":
        y = g.node(kind, g.node("Greater", x, g.constant(0.0)), x, x)
    elif kind == "Concat":
        y = g.node(kind, x, x, *([x] if g.coin(0.3) else []), axis=g.axis(shape))
    elif kind == "square":
        transposed = g.node("Transpose", x, perm=swapped(rank)) if shape[-1] != shape[-2] else x
        y = g.node("MatMul", x, transposed)
    elif kind == "Equal":
        y = g.node("Cast", g.node(kind, x, x), to=FLOAT)
    elif kind == "scatter":
        order = np.array(g.dice.sample(range(shape[0]), shape[0]))
        y = g.node("ScatterND", x, g.constant(order[:, None], np.int64), x)
    else:
        y = g.node(kind, x, x)
    if g.coin():
        g.node(g.dice.choice(("Add", "Mul")), y, g.weights(g.shape(y)[-1]))


#: How often each is drawn.
MOTIFS: dict[Maker, float] = {
    _attention: 1.5,
    _gate: 1,
    _spelled_gelu: 1,
    _squeeze_excite: 1,
    _heads_and_back: 1,
    _with_itself: 1.5,
}
