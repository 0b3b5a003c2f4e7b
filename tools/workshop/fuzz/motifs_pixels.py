"""What a random graph may grow by: what reads pixels of images as rows, or channels as parts."""

from __future__ import annotations

from math import prod

import numpy as np

from .growing import Maker, RandomGraph
from .motifs_images import active, conv, image, pool


def _rows_of_pixels(g: RandomGraph) -> None:
    """Layers that read pixels as rows, behind a convolution or not (ConvNeXt, Swin)."""
    x = image(g)
    n, c, h, w = g.shape(x)
    y = conv(g, x, c, g.dice.choice((3, 5, 7)), group=c) if g.coin(0.7) else x
    flat = g.coin()
    if flat:
        y = g.node("Reshape", y, g.ints(n, c, -1))
    y = g.node("Transpose", y, perm=[0, 2, 1] if flat else [0, 2, 3, 1])
    if c >= 4 and g.coin(0.8):
        y = g.node("LayerNormalization", y, g.weights(c), g.weights(c))
    if g.coin(0.8):
        wide = g.dice.choice((c, 2 * c, 16))
        y = g.node("MatMul", y, g.weights(c, wide))
        y = active(g, g.node("Add", y, g.weights(wide)) if g.coin() else y)
        y = g.node("MatMul", y, g.weights(wide, c))
        y = g.node("Add", y, g.weights(c)) if g.coin() else y
    y = g.node("Mul", y, g.weights(c)) if g.coin(0.4) else y
    y = g.node("Transpose", y, perm=[0, 2, 1] if flat else [0, 3, 1, 2])
    y = g.node("Reshape", y, g.ints(n, c, h, w)) if flat else y
    y = g.node("Add", *((x, y), (y, x))[g.coin()]) if g.coin(0.7) else y
    if g.coin(0.4):
        conv(g, y, g.width(), g.dice.choice((1, 2, 3)))


def _context(g: RandomGraph) -> None:
    """The mean of pixels by weights of their own (global context)."""
    x = image(g)
    n, c, h, w = g.shape(x)
    rows = g.node("Reshape", x, g.ints(n, c, h * w))
    weights = g.node("Reshape", conv(g, x, 1), g.ints(n, 1, h * w))
    weights = g.node("Softmax", weights, axis=2)
    if g.coin():
        y = g.node("MatMul", rows, g.node("Transpose", weights, perm=[0, 2, 1]))
    else:
        rows = g.node("Unsqueeze", rows, g.ints(1))
        y = g.node("MatMul", rows, g.node("Unsqueeze", weights, g.ints(-1)))
    y = g.node("Reshape", y, g.ints(n, c, 1, 1))
    y = conv(g, g.node("Relu", conv(g, y, 4)), c)
    g.node(g.dice.choice(("Add", "Mul")), x, y)


def _spelled_groups(g: RandomGraph) -> None:
    """A group normalization of an exporter that does not know it, or the operator."""
    x = image(g)
    n, c, h, w = g.shape(x)
    if c * h * w < 16:
        raise ValueError("a norm of two elements is a sign: runtimes show what they round")
    groups = g.dice.choice([k for k in (1, 2, 4) if c % k == 0])
    y = g.node("Reshape", x, g.ints(n, groups, -1))
    inner = g.constant(np.ones(groups)), g.constant(np.zeros(groups))
    y = g.node("InstanceNormalization", y, *inner)
    y = g.node("Reshape", y, g.ints(n, c, h, w))
    y = g.node("Mul", y, g.weights(c, 1, 1)) if g.coin(0.8) else y
    y = g.node("Add", y, g.weights(c, 1, 1)) if g.coin(0.8) else y
    y = active(g, y)
    if g.coin():
        y = conv(g, y, c, 3)
        g.node("Add", *((x, y), (y, x))[g.coin()])


def _image_attention(g: RandomGraph) -> None:
    """Attention of pixels or of channels, whose layers are convolutions."""
    x = image(g)
    n, c, h, w = g.shape(x)
    heads, size = g.dice.choice(((1, 4), (2, 4), (2, 8), (1, 8)))
    packed = g.coin()
    if packed:
        y = conv(g, x, 3 * heads * size)
        g.node("Split", y, g.ints(*[heads * size] * 3), outputs=3, axis=1)
        parts = list(g.nodes[-1].output)
    else:
        parts = [conv(g, x, heads * size) for _ in range(3)]
    alone = g.coin()  # heads are batches
    lead = (n * heads,) if alone else (n, heads)
    q, k, v = (g.node("Reshape", each, g.ints(*lead, size, h * w)) for each in parts)
    transposed = [*range(len(lead)), len(lead) + 1, len(lead)]
    if g.coin(0.3):  # channels attend
        q, k = (
            g.node("LpNormalization", each, axis=-1) if g.coin(0.7) else each for each in (q, k)
        )
        scores = g.node("MatMul", q, g.node("Transpose", k, perm=transposed))
        weights = g.node(
            "Softmax",
            g.node("Mul", scores, g.weights(heads, 1, 1)) if not alone else scores,
            axis=-1,
        )
        y = g.node("MatMul", weights, v)
    else:
        scores = g.node("MatMul", g.node("Transpose", q, perm=transposed), k)
        scores = g.node("Mul", scores, g.constant(size**-0.5)) if g.coin(0.7) else scores
        weights = g.node("Softmax", scores, axis=-1)
        if g.coin():
            y = g.node("MatMul", v, g.node("Transpose", weights, perm=transposed))
        else:
            y = g.node("MatMul", weights, g.node("Transpose", v, perm=transposed))
            y = g.node("Transpose", y, perm=transposed)
    y = g.node("Reshape", y, g.ints(n, heads * size, h, w))
    y = conv(g, y, c) if g.coin(0.8) else y
    if g.shape(y) == g.shape(x):
        g.node("Add", *((x, y), (y, x))[g.coin()])


def _gated(g: RandomGraph) -> None:
    """Halves of the channels of a convolution, one of which gates the other (NAFNet, GLU)."""
    x = image(g)
    half = g.dice.choice((4, 8, 16))
    y = conv(g, x, 2 * half)
    y = conv(g, y, 2 * half, 3, group=2 * half) if g.coin(0.4) else y
    if g.coin(0.6):
        g.node("Split", y, g.ints(half, half), outputs=2, axis=1)
        a, b = g.nodes[-1].output
    else:
        a, b = (
            g.node("Slice", y, g.ints(i * half), g.ints((i + 1) * half), g.ints(1)) for i in (0, 1)
        )
    b = g.node(g.dice.choice(("Sigmoid", "Tanh", "Identity", "Gelu")), b)
    y = g.node("Mul", *((a, b), (b, a))[g.coin()])
    y = conv(g, y, g.shape(x)[1])
    if g.coin(0.6):
        g.node("Add", x, g.node("Mul", y, g.weights(g.shape(x)[1], 1, 1)) if g.coin() else y)


def _quantized_layers(g: RandomGraph) -> None:
    """Layers between codes of 8 bits, as quantizers write them."""
    x = image(g)
    dtype = g.dice.choice((np.int8, np.uint8))
    zero = 0 if dtype == np.int8 else 128

    def coded(y: str, scale: float = 0.05) -> str:
        given = g.constant(scale), g.constant(zero, dtype)
        return g.node("DequantizeLinear", g.node("QuantizeLinear", y, *given), *given)

    y = coded(x)
    c = g.shape(y)[1]
    wide, kernel = g.dice.choice((4, 8, 16)), g.dice.choice((1, 3))
    rng = np.random.default_rng(g.dice.getrandbits(32))
    codes = g.constant(rng.integers(-100, 100, (wide, c, kernel, kernel)), np.int8)
    scales = rng.random(wide) / 500 / max(1, prod((c, kernel))) ** 0.5 if g.coin() else 0.002
    axis = {"axis": 0} if np.ndim(scales) else {}
    zeros = g.constant(np.zeros(np.shape(scales)), np.int8)
    w = g.node("DequantizeLinear", codes, g.constant(scales), zeros, **axis)
    bias = [g.weights(wide)] if g.coin() else []
    if bias and g.coin():  # in the scale of the sums
        steps = g.constant(np.float32(0.05) * np.broadcast_to(np.float32(scales), (wide,)))
        bias = [g.constant(rng.integers(-5000, 5000, wide), np.int32)]
        bias = [g.node("DequantizeLinear", *bias, steps, axis=0)]
    y = g.node("Conv", y, w, *bias, pads=[kernel // 2] * 4)
    y = g.node("Relu", y) if g.coin() else y
    y = coded(y, 0.03)
    how = g.dice.randrange(5)
    if how == 0:
        y = pool(g, "MaxPool", y, 2)
    elif how == 1:
        y = g.node("Transpose", y, perm=[0, 2, 3, 1])
    elif how == 2:
        y = g.node("Slice", y, g.ints(0), g.ints(2), g.ints(1))
    elif how == 3 and g.shape(y) == g.shape(x):
        y = g.node("Add", y, x)
    coded(y, 0.03)


#: How often each is drawn.
PIXELS: dict[Maker, float] = {
    _rows_of_pixels: 1.5,
    _context: 0.7,
    _spelled_groups: 1,
    _image_attention: 1.5,
    _gated: 1,
    _quantized_layers: 0.7,
}
