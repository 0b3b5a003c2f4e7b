"""What a random graph may grow by: blocks of networks that the newest passes look for."""

from __future__ import annotations

from itertools import combinations
from math import prod

import numpy as np

from .growing import Maker, RandomGraph
from .motifs_images import active, conv, image
from .motifs_rows import layer, projected


def _rows(g: RandomGraph, *lengths: int) -> str:
    """Add an input of rows, or draw one."""
    found = g.any(3) if g.coin(0.3) else None
    if found is not None:
        return found
    return g.input((g.dice.choice((1, 2, 3)), g.dice.choice(lengths or (1, 3, 4)), g.width()))


def _parts(g: RandomGraph, x: str, axis: int, *, kept: bool) -> list[str]:
    """Return what lies at the places of an axis, with that axis of size 1 or without it."""
    count, how = g.shape(x)[axis], g.dice.randrange(3)
    if how == 0 and not kept:
        return [g.node("Gather", x, g.constant(i, np.int64), axis=axis) for i in range(count)]
    if how == 1 and count > 1:
        g.node("Split", x, g.ints(*[1] * count), outputs=count, axis=axis)
        parts = list(g.nodes[-1].output)
    else:
        parts = [g.node("Slice", x, g.ints(i), g.ints(i + 1), g.ints(axis)) for i in range(count)]
    return parts if kept else [g.node("Squeeze", each, g.ints(axis)) for each in parts]


def _attended(g: RandomGraph, q: str, k: str, v: str, bias: str = "") -> str:
    """Return what queries [..., t, d] get from keys and values of the same rank."""
    rank = len(g.shape(q))
    transposed = g.node("Transpose", k, perm=[*range(rank - 2), rank - 1, rank - 2])
    scores = g.node("MatMul", q, transposed)
    if g.coin(0.6):
        scores = g.node("Mul", scores, g.constant(g.shape(q)[-1] ** -0.5))
    scores = g.node("Add", scores, bias) if bias else scores
    return g.node("MatMul", g.node("Softmax", scores, axis=-1), v)


def _pairs(g: RandomGraph) -> None:
    """Products of all pairs of a few vectors (FiBiNET, PNN)."""
    x = g.input((g.dice.choice((1, 2, 3)), g.dice.choice((4, 5)), g.dice.choice((2, 4))))
    kept = g.coin(0.7)
    fields = _parts(g, x, 1, kept=kept)
    left = fields
    if g.coin(0.4):
        shared = g.weights(g.shape(x)[-1], g.shape(x)[-1])
        left = [g.node("MatMul", each, shared) for each in fields]
    kind = g.dice.choice(("Mul", "Mul", "Add", "Sub", "Max"))
    pairs = list(combinations(range(len(fields)), 2))
    if g.coin(0.2):
        g.dice.shuffle(pairs)
    products = [g.node(kind, left[i], fields[j]) for i, j in pairs]
    y = g.node("Concat", *products, axis=g.dice.choice((1, -1)))
    if g.coin():
        g.node("ReduceSum", y, g.ints(-1), keepdims=0)
    else:
        layer(g, y, g.width())


def _all_pairs(g: RandomGraph) -> None:
    """Layers of what all pairs of nodes have in common (message passing, trilinear attention)."""
    x = _rows(g, 2, 3, 4, 6)
    batch, count, width = g.shape(x)
    spread: list[str] = []
    for axis in g.dice.choice(((1, 2), (2, 1), (1, 1))):
        y = g.node("Unsqueeze", x, g.ints(axis))
        sizes = [batch, count, count, width]
        if g.coin(0.2):
            sizes[3 - axis] = 1  # as a broadcast
        spread.append(g.node("Expand", y, g.ints(*sizes)))
    if g.coin(0.4):
        spread.append(g.node("Mul", *spread[:2]))
    if g.coin(0.4):
        places = np.zeros((batch, count, count, 2)) + (
            np.arange(2) if g.coin() else np.random.default_rng(0).random((count, count, 2))
        )
        spread.append(g.constant(places))
    g.dice.shuffle(spread)
    y = g.node("Concat", *spread, axis=g.dice.choice((-1, 3)))
    if g.coin(0.4):
        y = g.node("Reshape", y, g.ints(-1, g.shape(y)[-1]))
    wide = g.width()
    if len(g.shape(y)) == 2 and g.coin():
        weight = g.weights(
            *((wide, g.shape(y)[-1]) if (across := g.coin()) else (g.shape(y)[-1], wide))
        )
        y = g.node("Gemm", y, weight, g.weights(wide), transB=int(across))
    else:
        y = layer(g, y, wide)
    if g.coin():
        g.node("Relu", y)


def _variables(g: RandomGraph) -> None:
    """A gated residual network for each variable, and a weight for each (TFT, experts)."""
    count, size = g.dice.choice((3, 4, 5)), g.dice.choice((1, 2, 4))
    x = g.input((g.dice.choice((1, 2, 3)), count, size))
    wide, kind = g.dice.choice((2, 4)), g.dice.choice(("Elu", "Relu", "Tanh"))
    gated, normed, skips = g.coin(), g.coin(), g.coin()
    results: list[str] = []
    for part in _parts(g, x, 1, kept=g.coin(0.3)):
        rows = len(g.shape(part)) == 2 and g.coin(0.8)
        if rows:
            y = g.node("Gemm", part, g.weights(wide, size), g.weights(wide), transB=1)
        else:
            y = layer(g, part, wide, biased=1)
        y = g.node(kind, y)
        y = layer(g, y, wide, biased=0.9)
        if gated:
            y = g.node("Mul", y, g.node("Sigmoid", layer(g, y, wide, biased=0.9)))
        y = g.node("Add", layer(g, part, wide, biased=0), y) if skips else y
        y = g.node("LayerNormalization", y, g.weights(wide), g.weights(wide)) if normed else y
        results.append(g.node("Unsqueeze", y, g.ints(1)) if len(g.shape(y)) == 2 else y)
    y = g.node("Concat", *results, axis=1)
    if g.coin():
        scores = layer(g, g.node("Reshape", x, g.ints(g.shape(x)[0], -1)), count)
        scores = g.node("Unsqueeze", g.node("Softmax", scores, axis=-1), g.ints(-1))
        g.node("ReduceSum", g.node("Mul", y, scores), g.ints(1), keepdims=0)


def _heads_among_batches(g: RandomGraph) -> None:
    """Batched products of three axes: heads are batches (BoTNet, fairseq)."""
    heads, size = g.dice.choice(((2, 4), (4, 2), (2, 8), (1, 4)))
    if g.coin():
        x = image(g)
        n, _, h, w = g.shape(x)
        t = h * w
        parts = [
            g.node("Reshape", conv(g, x, heads * size), g.ints(n * heads, size, t))
            for _ in range(3)
        ]
        q, k, v = (g.node("Transpose", each, perm=[0, 2, 1]) for each in parts)
    else:
        x = _rows(g)
        n, t = g.shape(x)[:2]
        q, k, v = (
            g.node("Reshape", projected(g, x, heads, size), g.ints(n * heads, t, size))
            for _ in range(3)
        )
    bias = ""
    if g.coin(0.5):
        shape = g.dice.choice(((t, t), (n * heads, 1, t), (1, t, t), (n * heads, t, t)))
        bias = g.weights(*shape)
        if g.coin(0.4):  # of the positions that queries meet
            bias = g.node("MatMul", q, g.weights(size, t))
    y = _attended(g, q, k, v, bias)
    if len(g.shape(x)) == 4:
        y = g.node("Transpose", y, perm=[0, 2, 1])
        y = g.node("Reshape", y, g.ints(n, heads * size, *g.shape(x)[2:]))
        active(g, conv(g, y, g.width()) if g.coin() else y)
        return
    y = g.node("Reshape", y, g.ints(n, heads, t, size))
    y = g.node("Reshape", g.node("Transpose", y, perm=[0, 2, 1, 3]), g.ints(n, t, heads * size))
    layer(g, y, g.width())


def _orders_of_heads(g: RandomGraph) -> None:
    """Queries, keys and values packed in one layer, in any order (GPT-NeoX, ViT, BLOOM)."""
    x = _rows(g)
    n, t = g.shape(x)[:2]
    heads, size = g.dice.choice(((2, 4), (4, 2), (2, 8)))
    order = g.dice.choice(("3hd", "h3d", "hd3", "h(3d)"))
    y = layer(g, x, 3 * heads * size)
    where = order.find("3") + 2
    if order == "h(3d)":
        y = g.node("Reshape", y, g.ints(n, t, heads, 3 * size))
        y = g.node("Transpose", y, perm=[0, 2, 1, 3]) if (first := g.coin()) else y
        if g.coin():
            g.node("Split", y, g.ints(size, size, size), outputs=3, axis=-1)
            parts = list(g.nodes[-1].output)
        else:
            parts = [
                g.node("Slice", y, g.ints(i * size), g.ints((i + 1) * size), g.ints(3))
                for i in range(3)
            ]
    else:
        sizes = {"3": 3, "h": heads, "d": size}
        y = g.node("Reshape", y, g.ints(n, t, *(sizes[each] for each in order)))
        first = g.coin() and order == "3hd"
        if first:
            y, where = g.node("Transpose", y, perm=[2, 0, 3, 1, 4]), 0
        parts = _parts(g, y, where, kept=False)
    if not first:
        parts = [g.node("Transpose", each, perm=[0, 2, 1, 3]) for each in parts]
    if g.coin(0.3):
        g.dice.shuffle(parts)
    y = _attended(g, *parts)
    y = g.node("Transpose", y, perm=[0, 2, 1, 3])
    layer(g, g.node("Reshape", y, g.ints(n, t, heads * size)), g.shape(x)[-1])


def _flattened(g: RandomGraph) -> None:
    """A layer of a flattened image, or of the channels and frequencies of each point in time."""
    x = image(g)
    y = active(g, conv(g, x, g.dice.choice((2, 4)), g.dice.choice((1, 3))))
    if g.coin(0.3):
        y = g.node("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
    n, c, h, w = g.shape(y)
    how = g.dice.randrange(4)
    if how == 0:
        y = g.node("Flatten", y, axis=1)
    elif how == 1:
        y = g.node("Reshape", y, g.ints(n, -1))
    elif how == 2:
        y = g.node("Reshape", g.node("Transpose", y, perm=[0, 2, 1, 3]), g.ints(n, h, c * w))
    else:
        y = g.node("Reshape", g.node("Transpose", y, perm=[0, 3, 1, 2]), g.ints(n, w, c * h))
    wide = g.width()
    if len(g.shape(y)) == 2 and g.coin():
        g.node("Gemm", y, g.weights(wide, g.shape(y)[1]), g.weights(wide), transB=1)
    else:
        layer(g, y, wide)


def _unfolded(g: RandomGraph) -> None:
    """Patches of an image as rows of their own, and back (MobileViT, with views or Col2Im)."""
    x = g.input(
        (g.dice.choice((1, 2)), g.dice.choice((2, 4)), *g.dice.choice(((4, 4), (2, 6), (4, 2))))
    )
    n, c, h, w = g.shape(x)
    rows, columns = h // 2, w // 2
    y = conv(g, x, c) if g.coin(0.6) else x
    y = g.node("Reshape", y, g.ints(n * c * rows, 2, columns, 2))
    y = g.node("Transpose", y, perm=[0, 2, 1, 3])
    y = g.node("Reshape", y, g.ints(n, c, rows * columns, 4))
    if g.coin():  # blocks as columns
        if g.coin():
            y = g.node("Softmax", y, axis=g.dice.choice((-1, 2)))
        blocks = g.node("Transpose", y, perm=[0, 1, 3, 2])
        blocks = g.node("Reshape", blocks, g.ints(n, c * 4, rows * columns))
        y = g.node("Col2Im", blocks, g.ints(h, w), g.ints(2, 2), strides=[2, 2])
    else:
        y = g.node("Reshape", g.node("Transpose", y, perm=[0, 3, 2, 1]), g.ints(n * 4, -1, c))
        if g.coin():
            y = _attended(g, *(layer(g, y, c) for _ in range(3)))
        y = layer(g, y, c)
        y = g.node("Reshape", y, g.ints(n, 4, rows * columns, c))
        y = g.node("Transpose", y, perm=[0, 3, 2, 1])
        y = g.node("Reshape", y, g.ints(n * c * rows, columns, 2, 2))
        y = g.node("Transpose", y, perm=[0, 2, 1, 3])
        y = g.node("Reshape", y, g.ints(n, c, h, w))
    if g.coin():
        conv(g, g.node("Concat", x, y, axis=1) if g.coin() else y, c, g.dice.choice((1, 3)))


def _without_softmax(g: RandomGraph) -> None:
    """Attention whose weights are no Softmax of scores: squares, sigmoids, softmaxes apart."""
    x = _rows(g)
    n, t = g.shape(x)[:2]
    heads, size = g.dice.choice(((2, 4), (1, 8), (4, 2)))
    q, k, v = (projected(g, x, heads, size) for _ in range(3))
    how = g.dice.randrange(4)
    if how == 3:
        q, k = g.node("Softmax", q, axis=-1), g.node("Softmax", k, axis=2)
        y = g.node("MatMul", q, g.node("MatMul", g.node("Transpose", k, perm=[0, 1, 3, 2]), v))
    else:
        scores = g.node("MatMul", q, g.node("Transpose", k, perm=[0, 1, 3, 2]))
        scores = g.node("Mul", scores, g.constant(1 / t)) if g.coin() else scores
        scores = g.node("Add", scores, g.weights(heads, 1, t)) if g.coin(0.3) else scores
        if how == 0:
            relu = g.node("Relu", scores)
            scores = g.node("Mul", relu, relu)
        elif how == 1:
            scores = g.node("Sigmoid", scores)
        if g.coin(0.4):
            scores = g.node("Mul", scores, g.constant(np.tril(np.ones((t, t)))))
        y = g.node("MatMul", scores, v)
    y = g.node("Reshape", g.node("Transpose", y, perm=[0, 2, 1, 3]), g.ints(n, t, heads * size))
    if g.coin(0.4):
        y = g.node("Mul", y, g.node("Sigmoid", layer(g, x, heads * size)))
    layer(g, y, g.shape(x)[-1])


def _channel_gates(g: RandomGraph) -> None:
    """Channels that are scaled by what is computed of them, or of pixels (NAFNet, CBAM, SKNet)."""
    x = image(g)
    c, how = g.shape(x)[1], g.dice.randrange(3)
    if how == 0:
        y = conv(g, x, 2 * c)
        y = conv(g, y, 2 * c, 3, group=2 * c) if g.coin() else y
        g.node("Split", y, g.ints(c, c), outputs=2, axis=1)
        y = g.node("Mul", *g.nodes[-1].output)
        y = g.node("Mul", y, conv(g, g.node("GlobalAveragePool", y), c))
    elif how == 1:
        mean = g.node("ReduceMean", x, g.ints(1), keepdims=1)
        most = g.node("ReduceMax", x, g.ints(1), keepdims=1)
        y = conv(g, g.node("Concat", mean, most, axis=1), 1, g.dice.choice((1, 3)))
        y = g.node("Mul", x, g.node("Sigmoid", y))
    else:
        both = [conv(g, x, c, kernel) for kernel in (1, 3)]
        pooled = g.node("ReduceMean", g.node("Add", *both), g.ints(2, 3), keepdims=0)
        scores = [g.node("Unsqueeze", layer(g, pooled, c), g.ints(1)) for _ in both]
        weights = g.node("Softmax", g.node("Concat", *scores, axis=1), axis=1)
        weights = g.node("Unsqueeze", weights, g.ints(3, 4))
        stacked = g.node("Concat", *(g.node("Unsqueeze", y, g.ints(1)) for y in both), axis=1)
        y = g.node("ReduceSum", g.node("Mul", stacked, weights), g.ints(1), keepdims=0)
    if g.coin(0.6) and g.shape(y) == g.shape(x):
        g.node("Add", *((x, y), (y, x))[g.coin()])


def _fourier(g: RandomGraph) -> None:
    """A Fourier transform as products by cosines and sines, at once or by factors, or a DFT."""
    a, b = g.dice.choice(((2, 2), (2, 3), (4, 2), (3, 3)))
    n = a * b
    x = g.input((g.dice.choice((1, 2)), g.dice.choice((1, 3)), n))

    def waves(size: int) -> tuple[str, str]:
        angles = 2 * np.pi * np.outer(np.arange(size), np.arange(size)) / size
        return g.constant(np.cos(angles)), g.constant(-np.sin(angles))

    how = g.dice.randrange(3)
    if how == 0:
        real, imag = (g.node("MatMul", x, each) for each in waves(n))
    elif how == 1:
        y = g.node(
            "Transpose", g.node("Reshape", x, g.ints(*g.shape(x)[:2], a, b)), perm=[0, 1, 3, 2]
        )
        real, imag = (g.node("MatMul", y, each) for each in waves(a))
        angles = -2 * np.pi * np.outer(np.arange(b), np.arange(a)) / n
        cos, sin = g.constant(np.cos(angles)), g.constant(np.sin(angles))
        real, imag = (
            g.node("Sub", g.node("Mul", real, cos), g.node("Mul", imag, sin)),
            g.node("Add", g.node("Mul", real, sin), g.node("Mul", imag, cos)),
        )
        real, imag = (g.node("Transpose", each, perm=[0, 1, 3, 2]) for each in (real, imag))
        c, s = waves(b)
        real, imag = (
            g.node("Sub", g.node("MatMul", real, c), g.node("MatMul", imag, s)),
            g.node("Add", g.node("MatMul", real, s), g.node("MatMul", imag, c)),
        )
        real, imag = (
            g.node(
                "Reshape",
                g.node("Transpose", each, perm=[0, 1, 3, 2]),
                g.ints(*g.shape(x)[:2], n),
            )
            for each in (real, imag)
        )
    else:
        y = g.node("Unsqueeze", x, g.ints(-1))
        y = g.node("DFT", y, "", g.constant(2, np.int64), onesided=int(g.coin()))
        real, imag = _parts(g, y, 3, kept=False)
    if g.coin():
        power = (g.node("Mul", each, each) for each in (real, imag))
        g.node("MatMul", g.node("Sqrt", g.node("Add", *power)), g.weights(g.shape(real)[-1], 3))
    else:
        g.node("Concat", real, imag, axis=g.dice.choice((-1, 1)))


def _relative_positions(g: RandomGraph) -> None:
    """Scores with a bias of distances: from a table, by shifted rows, or by both axes of pixels."""
    how = g.dice.randrange(3)
    rows, columns = g.dice.choice(((2, 2), (1, 3), (2, 3)))
    t = rows * columns
    x = g.input((g.dice.choice((1, 2)), t, g.width()))
    n, heads, size = g.shape(x)[0], *g.dice.choice(((2, 4), (4, 2), (1, 8)))
    q, k, v = (projected(g, x, heads, size) for _ in range(3))
    if how == 0:  # T5, Swin
        apart = np.arange(t)[:, None] - np.arange(t) + t - 1
        table = g.weights(2 * t - 1, heads)
        if g.coin():
            bias = g.node("Gather", table, g.constant(apart, np.int64), axis=0)
        else:
            bias = g.node("Gather", table, g.constant(apart.reshape(-1), np.int64), axis=0)
            bias = g.node("Reshape", bias, g.ints(t, t, heads))
        bias = g.node("Transpose", bias, perm=[2, 0, 1])
        bias = g.node("Unsqueeze", bias, g.ints(0)) if g.coin() else bias
    elif how == 1:  # Transformer-XL, Music Transformer
        scores = g.node("MatMul", q, g.weights(heads, size, 2 * t - 1))
        zeros = g.constant([0, 0, 0, 1, 0, 0, 0, 0], np.int64)
        bias = g.node("Reshape", g.node("Pad", scores, zeros), g.ints(n, heads, 2 * t, t))
        bias = g.node("Slice", bias, g.ints(1), g.ints(1 << 62), g.ints(2))
        bias = g.node("Reshape", bias, g.ints(n, heads, t, 2 * t - 1))
        bias = g.node("Slice", bias, g.ints(0), g.ints(t), g.ints(3))
    else:  # MViTv2, SAM
        at = g.node("Reshape", q, g.ints(n, heads, rows, columns, size))
        high = g.node("MatMul", at, g.weights(rows, size, rows))
        transposed = g.node("Transpose", at, perm=[0, 1, 3, 2, 4])
        wide = g.node("MatMul", transposed, g.weights(columns, size, columns))
        wide = g.node("Transpose", wide, perm=[0, 1, 3, 2, 4])
        high, wide = g.node("Unsqueeze", high, g.ints(-1)), g.node("Unsqueeze", wide, g.ints(-2))
        bias = g.node("Reshape", g.node("Add", high, wide), g.ints(n, heads, t, t))
    y = _attended(g, q, k, v, bias)
    y = g.node("Reshape", g.node("Transpose", y, perm=[0, 2, 1, 3]), g.ints(n, t, -1))
    layer(g, y, g.shape(x)[-1])


def _shuffled_parts(g: RandomGraph) -> None:
    """Groups of channels that are computed apart, joined and shuffled (ShuffleNet, Res2Net)."""
    x = image(g)
    n, c, h, w = g.shape(x)
    if c % 2:
        raise ValueError("no halves")
    g.node("Split", x, g.ints(c // 2, c // 2), outputs=2, axis=1)
    a, b = g.nodes[-1].output
    b = active(g, conv(g, b, c // 2, g.dice.choice((1, 3))))
    b = g.node("Add", a, b) if g.coin(0.3) else b
    y = g.node("Concat", *((a, b), (b, a))[g.coin()], axis=1)
    if g.coin(0.7):
        y = g.node("Reshape", y, g.ints(n, 2, c // 2, h, w))
        y = g.node("Transpose", y, perm=[0, 2, 1, 3, 4])
        y = g.node("Reshape", y, g.ints(n, c, h, w))
    y = conv(g, y, c) if g.coin() else g.node("Mul", y, g.weights(c, 1, 1))
    if g.coin(0.3) and prod((h, w)) > 1:
        g.node("Pad", y, g.ints(0, 0, 1, 1, 0, 0, 1, 1))
        conv(g, g.nodes[-1].output[0], 2, 3, pads=[0] * 4)


#: How often each is drawn.
BLOCKS: dict[Maker, float] = {
    _pairs: 1,
    _all_pairs: 1.5,
    _variables: 1,
    _heads_among_batches: 1.5,
    _orders_of_heads: 1.5,
    _flattened: 1.5,
    _unfolded: 1.5,
    _without_softmax: 1,
    _channel_gates: 1.5,
    _fourier: 1,
    _relative_positions: 1.5,
    _shuffled_parts: 1,
}
