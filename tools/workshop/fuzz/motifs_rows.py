"""What a random graph may grow by: what networks of rows repeat, from layers to loops."""

from __future__ import annotations

import numpy as np

from .growing import FLOAT, Maker, RandomGraph


def _rows(g: RandomGraph, *, fresh: float = 0.3) -> str:
    """Draw rows of samples, or add an input of them."""
    found = None if g.coin(fresh) else g.any(3)
    if found is not None:
        return found
    return g.input((g.dice.choice((1, 1, 2)), g.dice.choice((1, 3, 4, 8, 16)), g.width()))


def layer(g: RandomGraph, x: str, wide: int, *, biased: float = 0.5) -> str:
    """Apply a layer of rows, some of which have a bias."""
    y = g.node("MatMul", x, g.weights(g.shape(x)[-1], wide))
    if not g.coin(biased):
        return y
    pair = y, g.weights(wide)
    return g.node("Add", *(pair if g.coin() else pair[::-1]))


def _heads(g: RandomGraph, y: str, heads: int, size: int) -> str:
    """Return columns as heads: [batch, length, heads, size]."""
    batch, length = g.shape(y)[:2]
    return g.node("Reshape", y, g.ints(batch, length, heads, size))


def projected(g: RandomGraph, x: str, heads: int, size: int) -> str:
    """Return the heads of a layer of rows, [batch, heads, rows, size]."""
    return g.node("Transpose", _heads(g, layer(g, x, heads * size), heads, size), perm=[0, 2, 1, 3])


def _active(g: RandomGraph, x: str) -> str:
    kind = g.dice.choice(("Relu", "Silu", "Gelu", "Tanh", "Sigmoid", ""))
    if kind == "Silu":
        return g.node("Mul", x, g.node("Sigmoid", x))
    return g.node(kind, x) if kind else x


def _relative(g: RandomGraph) -> None:
    """Heads of queries to which two vectors are added, one for each product (Transformer-XL)."""
    x = _rows(g)
    batch, length, _ = g.shape(x)
    heads, size = g.dice.choice(((2, 4), (1, 8), (4, 4)))
    q = _heads(g, layer(g, x, heads * size, biased=0.3), heads, size)
    k = g.node("Transpose", _heads(g, layer(g, x, heads * size), heads, size), perm=[0, 2, 3, 1])
    places = g.weights(heads, size, length)
    first = g.coin()
    if not first:
        q = g.node("Transpose", q, perm=[0, 2, 1, 3])
    scores: list[str] = []
    for right in (k, places):
        part = g.node("Add", q, g.weights(*((heads, size) if first else (heads, 1, size))))
        part = g.node("Transpose", part, perm=[0, 2, 1, 3]) if first else part
        scores.append(g.node("MatMul", part, right))
    total = g.node("Mul", g.node("Add", *scores), g.constant(size**-0.5))
    v = projected(g, x, heads, size)
    y = g.node("MatMul", g.node("Softmax", total, axis=-1), v)
    y = g.node("Transpose", y, perm=[0, 2, 1, 3])
    layer(g, g.node("Reshape", y, g.ints(batch, length, heads * size)), g.shape(x)[-1])


def _shared_matrices(g: RandomGraph) -> None:
    """Stacks of matrices, some of which are multiplied by the same one."""
    x = _rows(g)
    batch, length, width = g.shape(x)
    heads = g.dice.choice([k for k in (1, 2, 4) if width % k == 0])
    y = g.node("Transpose", _heads(g, x, heads, width // heads), perm=[0, 2, 1, 3])
    shape = g.dice.choice(((1, 1), (batch, 1), (1, heads), (batch, heads)))
    size = g.dice.choice((3, 4, 8))
    if g.coin():
        other = g.weights(*shape, width // heads, size)
    else:
        other = g.input((*shape, width // heads, size))
    if g.coin(0.3):
        y = g.node("Unsqueeze", y, g.ints(3))
        other = g.node("Unsqueeze", other, g.ints(2))
    z = g.node("MatMul", y, other)
    if len(g.shape(z)) == 4 and g.coin():
        z = g.node("Transpose", z, perm=[0, 2, 1, 3])
        g.node("Reshape", z, g.ints(batch, length, -1))


def _branches(g: RandomGraph) -> None:
    """Equal branches of small layers, whose results are joined (experts, heads one by one)."""
    x = _rows(g)
    count, wide, out = g.dice.choice((3, 4, 5)), g.dice.choice((4, 8)), g.dice.choice((1, 4))
    kind = g.dice.choice(("Relu", "Sigmoid", "Tanh", ""))
    has_bias, has_norm, second, own = (g.coin() for _ in range(4))
    rows = [x] * count
    if own and g.shape(x)[-1] % count == 0:
        g.node("Split", x, outputs=count, axis=-1, num_outputs=count)
        rows = list(g.nodes[-1].output)
    odd = g.dice.randrange(3 * count)
    parts: list[str] = []
    for i, each in enumerate(rows):
        y = g.node("MatMul", each, g.weights(g.shape(each)[-1], wide))
        y = g.node("Add", y, g.weights(wide)) if has_bias != (i == odd) else y
        y = g.node(kind, y) if kind else y
        y = g.node("LayerNormalization", y, g.weights(wide), g.weights(wide)) if has_norm else y
        y = g.node("MatMul", y, g.weights(wide, out)) if second else y
        if g.coin(0.05):
            g.results.append(y)
        parts.append(y)
    how = g.dice.randrange(3)
    if how == 0:
        g.node("Concat", *parts, axis=g.dice.choice((-1, 2, 1)))
    elif how == 1:
        axis = g.dice.choice((1, -1, 0))
        g.node("Concat", *(g.node("Unsqueeze", y, g.ints(axis)) for y in parts), axis=axis)
    else:
        total = parts[0]
        for y in parts[1:]:
            total = g.node("Add", total, y)


def _unrolled(g: RandomGraph) -> None:
    """A recurrence over places of a tensor, as an exporter unrolls it."""
    x = _rows(g)
    _, length, width = g.shape(x)
    if not 2 <= length <= 8:
        raise ValueError("too few steps or too many")
    gate = g.node("Sigmoid", x) if g.coin() else g.node("Exp", g.node("Neg", g.node("Abs", x)))
    given = g.node("Mul", x, g.weights(width)) if g.coin() else x
    transposed = g.coin(0.3)
    if transposed:
        gate, given = (g.node("Transpose", y, perm=[1, 0, 2]) for y in (gate, given))
    axis = 0 if transposed else 1
    how, parts = g.dice.randrange(3), dict[str, list[str]]()
    for each in {gate: None, given: None}:
        if how == 0:
            g.node("Split", each, outputs=length, axis=axis, num_outputs=length)
            parts[each] = list(g.nodes[-1].output)
        elif how == 1:
            parts[each] = [
                g.node("Slice", each, g.ints(i), g.ints(i + 1), g.ints(axis)) for i in range(length)
            ]
        else:
            parts[each] = [
                g.node("Gather", each, g.constant(i, np.int64), axis=axis) for i in range(length)
            ]
    state = g.constant(np.zeros(g.shape(parts[gate][0]))) if g.coin() else parts[given][0]
    order = range(length) if g.coin(0.8) else range(length)[::-1]
    states: list[str] = []
    form = g.dice.randrange(3)
    for i in order:
        kept = g.node("Mul", parts[gate][i], state)
        if form == 0:
            state = g.node("Add", kept, parts[given][i])
        elif form == 1:
            rest = g.node("Sub", g.constant(1.0), parts[gate][i])
            state = g.node("Add", kept, g.node("Mul", rest, parts[given][i]))
        else:
            state = g.node("Tanh", g.node("Add", kept, parts[given][i]))
        states.append(state)
    states = states if g.coin(0.8) else states[::-1]
    if how == 2:
        y = g.node("Concat", *(g.node("Unsqueeze", s, g.ints(axis)) for s in states), axis=axis)
    else:
        y = g.node("Concat", *states, axis=axis)
    y = g.node("Transpose", y, perm=[1, 0, 2]) if transposed and g.coin() else y
    if g.coin():
        layer(g, y, g.width())


def _chunks(g: RandomGraph) -> None:
    """Linear attention over chunks, whose state is a matrix."""
    x = _rows(g)
    batch, length, _ = g.shape(x)
    count = g.dice.choice((2, 4))
    if length % count:
        raise ValueError("no such chunks")
    size = g.dice.choice((2, 4))
    q, k, v = (
        g.node("Reshape", layer(g, x, size), g.ints(batch, count, length // count, size))
        for _ in range(3)
    )
    k = g.node("Transpose", k, perm=[0, 1, 3, 2])
    state, results = "", list[str]()
    for i in range(count):
        a, b, c = (g.node("Gather", y, g.constant(i, np.int64), axis=1) for y in (q, k, v))
        inner = g.node("MatMul", g.node("MatMul", a, b), c)
        if state:
            inner = g.node("Add", inner, g.node("MatMul", a, state))
        new = g.node("MatMul", b, c)
        state = g.node("Add", state, new) if state else new
        results.append(g.node("Unsqueeze", inner, g.ints(1)))
    g.node("Concat", *results, axis=1)


def _places(g: RandomGraph) -> None:
    """An elementwise operator of each place of an axis."""
    x = _rows(g)
    length = g.shape(x)[1]
    if not 2 <= length <= 8:
        raise ValueError("too few places or too many")
    kind = g.dice.choice(("Exp", "Sigmoid", "Neg"))
    y = g.node("Tanh", x)
    parts: list[str] = []
    for i in range(length):
        if g.coin(0.1):
            continue
        part = g.node("Gather", y, g.constant(i, np.int64), axis=1)
        parts.append(g.node(kind, part))
    if len(parts) > 1:
        total = g.node("Mul", parts[0], parts[1])
        for each in parts[2:]:
            total = g.node("Add", total, each)


def _summed_layers(g: RandomGraph) -> None:
    """Sums of two layers and of what their block has read."""
    x = _rows(g)
    width = g.shape(x)[-1]
    p, q = (layer(g, each, width, biased=0.4) for each in (x, g.node("Tanh", x)))
    pair = (p, q) if g.coin() else (q, p)
    y = (
        g.node("Add", g.node("Add", *pair), x)
        if g.coin()
        else g.node("Add", x, g.node("Add", *pair))
    )
    _active(g, y)


def _softmax_of_rows(g: RandomGraph) -> None:
    """A Softmax of rows between views, as of old opsets."""
    x = g.need(3, 4)
    shape = g.shape(x)
    kind = g.dice.choice(("Softmax", "LogSoftmax"))
    if g.coin():
        y = g.node("Reshape", x, g.ints(-1, shape[-1]))
    else:
        y = g.node("Flatten", x, axis=len(shape) - 1)
    y = g.node(kind, y, axis=g.dice.choice((-1, 1)))
    g.node("Reshape", y, g.ints(*shape))


def _normed_rows(g: RandomGraph) -> None:
    """A BatchNormalization of the columns of a layer, between views or transposes."""
    x = _rows(g)
    batch, length, _ = g.shape(x)
    wide = g.dice.choice((4, 8))
    y = layer(g, x, wide)
    given = g.weights(wide), g.weights(wide), g.weights(wide), g.constant(np.full(wide, 0.7))
    if g.coin():
        y = g.node("Reshape", y, g.ints(batch * length, wide))
        y = g.node("BatchNormalization", y, *given)
        y = g.node("Reshape", y, g.ints(batch, length, wide))
    else:
        y = g.node("Transpose", y, perm=[0, 2, 1])
        y = g.node("BatchNormalization", y, *given)
        y = g.node("Transpose", y, perm=[0, 2, 1])
    _active(g, y)


def _tables(g: RandomGraph) -> None:
    """Rows of several tables side by side (DLRM)."""
    count, width, batch = g.dice.choice((2, 4, 5)), g.dice.choice((2, 4)), g.dice.choice((1, 2, 3))
    ids = g.input((batch, count), 7, range(3))
    parts: list[str] = []
    for i in range(count):
        place = g.node("Gather", ids, g.constant(i, np.int64), axis=1)
        row = g.node("Gather", g.weights(g.dice.choice((3, 4, 7)), width), place, axis=0)
        parts.append(g.node("Unsqueeze", row, g.ints(1)))
    y = g.node("Concat", *parts, axis=1)
    if g.coin():
        g.node("MatMul", y, g.node("Transpose", y, perm=[0, 2, 1]))


def _unit_heads(g: RandomGraph) -> None:
    """Heads that are normalized or divided by their length, before a product."""
    x = _rows(g)
    batch, length, _ = g.shape(x)
    heads, size = g.dice.choice(((2, 4), (1, 8), (4, 8), (2, 16)))
    packed = layer(g, x, 3 * heads * size)
    if g.coin():
        g.node("Split", packed, g.ints(*[heads * size] * 3), outputs=3, axis=-1)
        q, k, v = (_heads(g, y, heads, size) for y in g.nodes[-1].output)
    else:
        y = g.node("Reshape", packed, g.ints(batch, length, 3, heads, size))
        y = g.node("Transpose", y, perm=[2, 0, 1, 3, 4])
        q, k, v = (g.node("Gather", y, g.constant(i, np.int64), axis=0) for i in range(3))
    how = g.dice.randrange(4)

    def unit(y: str) -> str:
        if how == 0:
            return g.node("LayerNormalization", y, g.weights(size), g.weights(size))
        if how == 1:
            return g.node("LpNormalization", y, axis=-1)
        square = g.node("Mul", y, y)
        if how == 2:
            mean = g.node("ReduceMean", square, g.ints(-1))
            root = g.node("Sqrt", g.node("Add", mean, g.constant(1e-6)))
            return g.node("Mul", g.node("Div", y, root), g.weights(size))
        root = g.node("Sqrt", g.node("ReduceSum", square, g.ints(-1)))
        return g.node("Div", y, g.node("Max", root, g.constant(1e-6)))

    q, k = unit(q), unit(k)
    q, v = (g.node("Transpose", y, perm=[0, 2, 1, 3]) for y in (q, v))
    k = g.node("Transpose", k, perm=[0, 2, 3, 1])
    scores = g.node("MatMul", q, k)
    scores = g.node("Mul", scores, g.weights(heads, 1, 1)) if g.coin(0.3) else scores
    y = g.node("MatMul", g.node("Softmax", scores, axis=-1), v)
    y = g.node("Reshape", g.node("Transpose", y, perm=[0, 2, 1, 3]), g.ints(batch, length, -1))
    layer(g, y, g.shape(x)[-1])


def _linear_attention(g: RandomGraph) -> None:
    """Attention without a Softmax: products in another order, with a denominator or a decay."""
    x = _rows(g)
    batch, length, _ = g.shape(x)
    heads, size = g.dice.choice(((2, 4), (1, 8), (4, 8)))
    q, k, v = (projected(g, x, heads, size) for _ in range(3))
    q, k = (g.node("Relu", y) for y in (q, k)) if g.coin(0.7) else (q, k)
    transposed = g.node("Transpose", k, perm=[0, 1, 3, 2])
    if g.coin():
        y = g.node("MatMul", q, g.node("MatMul", transposed, v))
        if g.coin():
            total = g.node("ReduceSum", k, g.ints(2), keepdims=1)
            below = g.node("ReduceSum", g.node("Mul", q, total), g.ints(-1), keepdims=1)
            y = g.node("Div", y, g.node("Add", g.node("Abs", below), g.constant(0.1)))
    else:
        steps = np.arange(length)
        decay = np.tril(0.9 ** np.abs(steps[:, None] - steps))
        y = g.node("MatMul", g.node("Mul", g.node("MatMul", q, transposed), g.constant(decay)), v)
    y = g.node("Reshape", g.node("Transpose", y, perm=[0, 2, 1, 3]), g.ints(batch, length, -1))
    layer(g, y, g.shape(x)[-1])


def _moved_product(g: RandomGraph) -> None:
    """A product of two computed tensors of any order of axes, cut out of others."""
    x, z = _rows(g), _rows(g, fresh=0.5)
    if g.shape(x)[0] != g.shape(z)[0]:
        z = x
    m, n = g.shape(x)[1], g.shape(z)[1]
    heads, size = g.dice.choice(((1, 4), (2, 4), (2, 8), (3, 2)))
    a, b = layer(g, x, 2 * heads * size), layer(g, z, heads * size)
    start = g.dice.choice((0, heads * size))
    a = g.node("Slice", a, g.ints(start), g.ints(start + heads * size), g.ints(2))
    a, b = _heads(g, a, heads, size), _heads(g, b, heads, size)
    if g.coin():
        left = g.node("Transpose", a, perm=[0, 2, 1, 3])
        y = g.node("MatMul", left, g.node("Transpose", b, perm=[0, 2, 3, 1]))
    elif m == n:
        left = g.node("Transpose", a, perm=[0, 2, 3, 1])
        y = g.node("MatMul", left, g.node("Transpose", b, perm=[0, 2, 1, 3]))
    else:
        left = g.node("Transpose", a, perm=[2, 0, 1, 3])
        y = g.node("MatMul", left, g.node("Transpose", b, perm=[2, 0, 3, 1]))
    y = _active(g, g.node("Mul", y, g.constant(0.5)) if g.coin() else y)
    if g.coin():
        perm = g.dice.choice(([0, 2, 1, 3], [0, 2, 3, 1], [0, 1, 3, 2]))
        y = g.node("Transpose", y, perm=perm)
        g.node("Reshape", y, g.ints(*g.shape(y)[:2], -1))


def _few(g: RandomGraph) -> None:
    """Layers of one row or few, with a norm in front and a gate between them."""
    rows, width = g.dice.choice((1, 1, 2, 4)), g.dice.choice((32, 64, 128))
    x = g.input(g.dice.choice(((1, rows, width), (rows, width))))
    y = g.node("Add", x, g.weights(width)) if g.coin() else x
    if g.coin(0.7):
        squared = g.node("ReduceMean", g.node("Mul", y, y), g.ints(-1))
        root = g.node("Sqrt", g.node("Add", squared, g.constant(1e-6)))
        y = g.node("Mul", g.node("Div", y, root), g.weights(width))
    wide = g.dice.choice((16, 32, 64))
    a, b = layer(g, y, wide, biased=0.3), layer(g, y, wide, biased=0.3)
    gate = g.node("Mul", a, g.node("Sigmoid", a)) if g.coin() else g.node("Gelu", a)
    z = layer(g, g.node("Mul", *((gate, b), (b, gate))[g.coin()]), width, biased=0.3)
    g.node("Add", *((x, z), (z, x))[g.coin()])


def _folded(g: RandomGraph) -> None:
    """Chains around reductions, along any axes, of any tensors, also ones that moved."""
    x = g.need(2, 3, 4)
    rank = len(g.shape(x))
    if g.coin(0.4):
        x = g.node("Transpose", x, perm=g.dice.sample(range(rank), rank))
    y = g.node(
        g.dice.choice(("Mul", "Sub", "Add")), x, g.dice.choice((x, g.weights(g.shape(x)[-1])))
    )
    y = _active(g, y)
    axes = sorted(g.dice.sample(range(rank), g.dice.randrange(1, rank + 1)))
    kept = int(g.coin(0.7))
    kind = g.dice.choice(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceL1", "ReduceLogSumExp"))
    z = g.node(kind, y, g.ints(*axes), keepdims=kept)
    for _ in range(g.dice.randrange(3)):
        z = g.node(g.dice.choice(("Mul", "Add")), z, g.constant(g.dice.choice((0.5, -1.0))))
    if kept and g.coin(0.7):
        g.node(g.dice.choice(("Sub", "Mul", "Add")), *((x, z), (z, x))[g.coin()])
    if g.coin(0.2):
        g.node("Cast", g.node("Cast", z, to=10), to=FLOAT)


def _masked(g: RandomGraph) -> None:
    """Attention with masks that are computed from lengths or from the data."""
    x = _rows(g)
    batch, length, width = g.shape(x)
    heads, size = g.dice.choice(((1, 8), (2, 4), (2, 8)))
    q, k, v = (projected(g, x, heads, size) for _ in range(3))
    scores = g.node("MatMul", q, g.node("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.node("Mul", scores, g.constant(size**-0.5))
    how = g.dice.randrange(4)
    if how == 0:
        kept = g.input((batch, length), 9, range(2))
        kept = g.node("Or", kept, g.constant(np.arange(length) == 0, bool))
        kept = g.node("Unsqueeze", kept, g.ints(1, 2))
        scores = g.node("Where", kept, scores, g.constant(g.dice.choice((-1e9, -np.inf))))
    elif how == 1:
        kept = g.node("Cast", g.input((batch, length), 7, range(2)), to=FLOAT)
        kept = g.node("Mul", g.node("Sub", g.constant(1.0), kept), g.constant(-10000.0))
        scores = g.node("Add", scores, g.node("Unsqueeze", kept, g.ints(1, 2)))
    elif how == 2:
        scores = g.node("Add", scores, g.input((batch, heads, length, length)))
    weights = g.node("Softmax", scores, axis=-1)
    if g.coin(0.15):
        g.results.append(weights)
    y = g.node("MatMul", weights, v)
    y = g.node("Reshape", g.node("Transpose", y, perm=[0, 2, 1, 3]), g.ints(batch, length, -1))
    y = layer(g, y, width)
    y = g.node("Add", y, x) if g.coin(0.8) else y
    if width >= 4:
        g.node("LayerNormalization", y, g.weights(width), g.weights(width))


def _assigned(g: RandomGraph) -> None:
    """Parts of a tensor that are written or added to, as exporters write assignments."""
    x = _rows(g)
    batch, length, width = g.shape(x)
    if length < 2:
        raise ValueError("no parts")
    first = g.dice.randrange(length - 1)
    last = g.dice.randrange(first + 1, length + 1)
    transposed = g.node("Transpose", x, perm=[1, 0, 2])
    part = g.node("Slice", transposed, g.ints(first), g.ints(last), g.ints(0))
    other = g.input((last - first, batch, width)) if g.coin() else g.node("Neg", part)
    how = g.dice.randrange(3)
    y = g.node("Add", *((part, other), (other, part))[g.coin()]) if how else other
    places = g.constant(np.arange(first, last)[:, None], np.int64)
    y = g.node("ScatterND", transposed, places, y)
    if g.coin(0.3) and first:
        rest = g.constant(np.arange(first)[:, None], np.int64)
        y = g.node("ScatterND", y, rest, g.input((first, batch, width)))
    g.node("Transpose", y, perm=[1, 0, 2])


#: How often each is drawn.
ROWS: dict[Maker, float] = {
    _relative: 1,
    _shared_matrices: 1,
    _branches: 1.5,
    _unrolled: 1.5,
    _chunks: 0.7,
    _places: 0.7,
    _summed_layers: 1,
    _softmax_of_rows: 1,
    _normed_rows: 1,
    _tables: 0.5,
    _unit_heads: 1,
    _linear_attention: 1,
    _moved_product: 1.5,
    _few: 1,
    _folded: 2,
    _masked: 1,
    _assigned: 1,
}
