"""What a random graph may grow by: what networks of images repeat, from stems to attention."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .growing import Maker, RandomGraph


def image(g: RandomGraph, *, fresh: float = 0.3) -> str:
    """Draw an image, or add an input that is one."""
    found = None if g.coin(fresh) else g.any(4)
    if found is not None:
        return found
    batch, channels = g.dice.choice((1, 1, 2, 3)), g.dice.choice((3, 4, 8, 16))
    return g.input((batch, channels, g.dice.choice((1, 4, 5, 8)), g.dice.choice((2, 4, 7, 8))))


def active(g: RandomGraph, x: str) -> str:
    """Apply an activation, or none."""
    kind = g.dice.choice(("Relu", "Relu", "Silu", "HardSwish", "Clip", "LeakyRelu", "Gelu", ""))
    if kind == "Silu":
        return g.node("Mul", x, g.node("Sigmoid", x))
    if kind == "Clip":
        return g.node(kind, x, g.constant(0.0), g.constant(6.0))
    return g.node(kind, x) if kind else x


def normed(g: RandomGraph, x: str) -> str:
    """Apply a batch normalization, or a factor or an addend for each channel."""
    channels = g.shape(x)[1]
    if g.coin(0.7):
        given = g.weights(channels), g.weights(channels), g.weights(channels)
        return g.node("BatchNormalization", x, *given, g.constant(np.full(channels, 0.7)))
    per_channel = g.weights(channels, *(1 for _ in g.shape(x)[2:]))
    pair = (x, per_channel) if g.coin() else (per_channel, x)
    return g.node(g.dice.choice(("Mul", "Add", "Sub")), *pair)


def conv(
    g: RandomGraph,
    x: str,
    width: int,
    kernel: int = 1,
    *,
    stride: int = 1,
    group: int = 1,
    pads: Sequence[int] | None = None,
) -> str:
    """Apply a convolution of square windows, which keeps the size unless pads are given."""
    axes = len(g.shape(x)) - 2
    w = g.weights(width, g.shape(x)[1] // group, *[kernel] * axes)
    bias = [g.weights(width)] if g.coin() else []
    around = [(kernel - 1) // 2] * axes + [kernel // 2] * axes if pads is None else list(pads)
    _must_fit(g, x, kernel, around)
    return g.node("Conv", x, w, *bias, pads=around, strides=[stride] * axes, group=group)


def pool(g: RandomGraph, kind: str, x: str, kernel: int, stride: int = 1, pad: int = 0) -> str:
    """Pool square windows."""
    _must_fit(g, x, kernel, [pad] * 4)
    return g.node(kind, x, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4)


def _must_fit(g: RandomGraph, x: str, kernel: int, pads: Sequence[int]) -> None:
    """Raise ValueError if windows are larger than an image; ONNX's inference does not."""
    sizes = g.shape(x)[2:]
    ends = zip(sizes, pads[: len(sizes)], pads[len(sizes) :], strict=True)
    if any(size + before + after < kernel for size, before, after in ends):
        raise ValueError("a window does not fit")


def _block(g: RandomGraph) -> None:
    """A convolution with what stands in front of it and behind it."""
    x = image(g)
    channels = g.shape(x)[1]
    kernel = g.dice.choice((1, 1, 2, 3, 3, 5, 7))
    group = g.dice.choice([n for n in (1, 1, 1, 2, channels) if channels % n == 0])
    wide = channels if g.coin() else group * g.dice.choice((1, 2, 4, 8))
    y, pads = x, None
    if g.coin(0.25):
        ends = [0, 0, g.dice.randrange(3), g.dice.randrange(3), 0, 0, g.dice.randrange(3), 1]
        value = [g.constant(g.dice.choice((0.0, 0.0, 1.0)))] if g.coin() else []
        y = g.node("Pad", x, g.ints(*ends), *value)
        pads = [g.dice.choice((0, 0, 1)) for _ in range(4)]
    elif g.coin(0.2):
        pads = [g.dice.randrange(kernel) for _ in range(4)]
    y = conv(g, y, wide, kernel, stride=g.dice.choice((1, 1, 2)), group=group, pads=pads)
    y = normed(g, y) if g.coin() else y
    y = active(g, y) if g.coin(0.7) else y
    if g.coin(0.5):
        same = [n for n, t in g.types.items() if t == g.types[y] and n not in (y, *g.constants)]
        other = g.dice.choice(same) if same else g.weights(*g.shape(y)[1:])
        y = g.node(g.dice.choice(("Add", "Add", "Mul", "Sub")), *((y, other), (other, y))[g.coin()])
        y = active(g, y)
    if g.coin(0.35):
        k = g.dice.choice((2, 3))
        stride, pad = g.dice.choice(((k, 0), (1, k // 2), (2, k // 2)))
        pool(g, g.dice.choice(("MaxPool", "MaxPool", "AveragePool")), y, k, stride, pad)


def _downsampled(g: RandomGraph) -> None:
    """The sum with which a stage of a ResNet begins."""
    x = image(g)
    wide = g.dice.choice((4, 8, 12))
    stride = g.dice.choice((1, 2))
    inner = active(g, conv(g, x, g.dice.choice((2, 4)), 3, stride=stride))
    one = conv(g, inner, wide)
    if g.coin(0.3) and stride == 2:
        x = pool(g, "AveragePool", x, 2, 2)
        stride = 1
    other = conv(g, x, wide, stride=stride)
    one, other = (normed(g, each) if g.coin() else each for each in (one, other))
    active(g, g.node("Add", *((one, other), (other, one))[g.coin()]))


def _inception(g: RandomGraph) -> None:
    """Branches of one image whose results are concatenated, with what follows all of them."""
    x = image(g)
    parts: list[str] = []
    for _ in range(g.dice.randrange(2, 5)):
        how = g.dice.randrange(4)
        if how == 0:
            y = pool(g, "MaxPool", x, 3, 1, 1)
            y = conv(g, y, g.dice.choice((4, 8)))
        else:
            y = conv(g, x, g.dice.choice((4, 8, 6)))
            y = g.node("Relu", y) if g.coin(0.7) else active(g, y)
            if how > 1:
                y = conv(g, y, g.dice.choice((4, 8, 3)), g.dice.choice((3, 3, 5)))
        parts.append(y)
    if g.coin(0.2):
        parts.append(x)
    if g.coin(0.2):
        parts.append(g.dice.choice(parts))
    y = g.node("Concat", *parts, axis=g.dice.choice((1, -3)))
    y = normed(g, y) if g.coin() else y
    y = active(g, y) if g.coin(0.7) else y
    if g.coin(0.4):
        conv(g, y, g.width(), g.dice.choice((1, 3)))


def _dense(g: RandomGraph) -> None:
    """Layers each of which reads what all before it have made (DenseNet)."""
    x = image(g)
    for _ in range(g.dice.randrange(1, 4)):
        y = conv(g, active(g, normed(g, x)) if g.coin(0.7) else x, 4)
        y = conv(g, active(g, y), g.dice.choice((4, 4, 3)), 3)
        x = g.node("Concat", *((x, y) if g.coin(0.8) else (y, x)), axis=1)
    if g.coin():
        conv(g, normed(g, x), g.width())


def _inverted(g: RandomGraph) -> None:
    """A wide depthwise convolution between two narrow tensors (MobileNet)."""
    x = image(g)
    channels = g.shape(x)[1]
    wide = g.dice.choice((channels, 2 * channels, 16, 32))
    y = active(g, conv(g, x, wide)) if wide != channels or g.coin() else x
    kernel, stride = g.dice.choice((3, 3, 5)), g.dice.choice((1, 1, 2))
    y = conv(g, y, g.shape(y)[1], kernel, stride=stride, group=g.shape(y)[1])
    y = active(g, normed(g, y) if g.coin() else y)
    if g.coin(0.3):
        pooled = g.node("GlobalAveragePool", y)
        gate = conv(g, g.node("Relu", conv(g, pooled, 4)), g.shape(y)[1])
        y = g.node("Mul", y, g.node(g.dice.choice(("Sigmoid", "HardSigmoid")), gate))
    y = conv(g, y, channels)
    if stride == 1 and g.coin(0.7):
        y = g.node("Add", *((x, y), (y, x))[g.coin()])
    if g.coin(0.3):
        conv(g, active(g, y), channels, 3, group=channels)


def _prenormed(g: RandomGraph) -> None:
    """A normalization in front of layers, all or most of which could take it over."""
    x = image(g)
    y = normed(g, x)
    y = pool(g, "AveragePool", y, 2, 2) if g.coin(0.2) else y
    for _ in range(g.dice.randrange(1, 4)):
        conv(g, y, g.dice.choice((4, 6, 8)), g.dice.choice((1, 1, 1, 3)))
    if g.coin(0.2):
        active(g, y)


def _activated(g: RandomGraph) -> None:
    """A normalization behind an activated layer, with a sum and layers behind it (ConvMixer)."""
    x = image(g)
    c = g.shape(x)[1]
    y = conv(g, x, c, g.dice.choice((1, 3, 5)), group=g.dice.choice((1, c)))
    y = normed(g, g.node(g.dice.choice(("Gelu", "Relu", "Sigmoid")), y))
    y = g.node("Add", *((x, y), (y, x))[g.coin()]) if g.coin(0.6) else y
    for _ in range(g.dice.randrange(3)):
        conv(g, y, g.dice.choice((4, c)), g.dice.choice((1, 1, 3)))


def _flattened(g: RandomGraph) -> None:
    """A layer that reads a whole image."""
    x = image(g)
    if g.coin(0.6):
        x = active(g, conv(g, x, g.dice.choice((4, 8)), g.dice.choice((1, 3))))
    if g.coin(0.4):
        x = pool(g, "MaxPool", x, 2, 2)
    n, _, h, w = g.shape(x)
    how, wide = g.dice.randrange(4), g.width()
    if how == 0:
        y = conv(g, x, wide, pads=[0] * 4) if h != w else conv(g, x, wide, h, pads=[0] * 4)
        y = g.node("Flatten", active(g, y), axis=1)
    elif how == 1:
        pooled = g.node("GlobalAveragePool", x)
        y = (
            g.node("Flatten", pooled, axis=1)
            if g.coin()
            else g.node("Squeeze", pooled, g.ints(2, 3))
        )
    elif how == 2:
        y = g.node("Flatten", x, axis=1)
    else:
        y = g.node("Reshape", x, g.ints(n, -1))
    size = g.shape(y)[1]
    if g.coin():
        g.node("Gemm", y, g.weights(wide, size), g.weights(wide), transB=1)
    else:
        g.node("Add", g.node("MatMul", y, g.weights(size, wide)), g.weights(wide))


def _larger(g: RandomGraph) -> None:
    """An image of more pixels, in one of several ways, with what follows."""
    x = image(g)
    _, c, _, _ = g.shape(x)
    how = g.dice.randrange(4)
    if how == 0:
        y = conv(g, x, 4 * g.dice.choice((1, 2, 4)), g.dice.choice((1, 3)))
        y = active(g, y) if g.coin(0.3) else y
        y = g.node("DepthToSpace", y, blocksize=2, mode=g.dice.choice(("DCR", "CRD")))
    elif how == 1:
        wide, kernel = g.dice.choice((4, 8)), g.dice.choice((2, 2, 3, 4))
        pads = [(kernel - 2) // 2] * 4
        bias = [g.weights(wide)] if g.coin() else []
        w = g.weights(c, wide, kernel, kernel)
        y = g.node("ConvTranspose", x, w, *bias, strides=[2, 2], pads=pads)
    elif how == 2:
        y = g.node(
            "Resize",
            x,
            "",
            g.constant([1.0, 1, 2, 2]),
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )
    else:
        n, c, h, w = g.shape(x)
        y = g.node("Reshape", x, g.ints(n, c, h, 1, w, 1))
        y = g.node("Expand", y, g.ints(n, c, h, 2, w, 2))
        y = g.node("Reshape", y, g.ints(n, c, 2 * h, 2 * w))
    y = normed(g, y) if g.coin(0.4) else y
    y = active(g, y)
    if g.coin(0.4):
        skip = g.input((g.shape(y)[0], 4, *g.shape(y)[2:]))
        y = g.node("Concat", *((skip, y), (y, skip))[g.coin()], axis=1)
    if g.coin(0.5):
        conv(g, y, g.width(), g.dice.choice((1, 3)))


def _styled(g: RandomGraph) -> None:
    """A convolution by filters that computed factors of each image scale (StyleGAN)."""
    x = image(g)
    n, c, h, w = g.shape(x)
    wide, kernel = g.dice.choice((4, 8)), g.dice.choice((1, 3))
    style = g.node("Add", g.input((n, c)), g.constant(1.0))
    style = g.node("Reshape", style, g.ints(n, 1, c, 1, 1))
    filters = g.node("Mul", g.weights(1, wide, c, kernel, kernel), style)
    if g.coin(0.7):
        square = (
            g.node("Mul", filters, filters) if g.coin() else g.node("Pow", filters, g.constant(2.0))
        )
        total = g.node("ReduceSum", square, g.ints(2, 3, 4), keepdims=1)
        root = g.node("Sqrt", g.node("Add", total, g.constant(1e-8)))
        filters = g.node("Mul", filters, g.node("Reciprocal", root))
    filters = g.node("Reshape", filters, g.ints(n * wide, c, kernel, kernel))
    rows = g.node("Reshape", x, g.ints(1, n * c, h, w))
    y = g.node("Conv", rows, filters, pads=[kernel // 2] * 4, group=n)
    y = g.node("Reshape", y, g.ints(n, wide, h, w))
    active(g, g.node("Add", y, g.weights(wide, 1, 1)) if g.coin() else y)


_REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSumSquare")


def _reduced(g: RandomGraph) -> None:
    """A reduction of an image along any axes, behind a layer, in a chain."""
    x = image(g)
    y = conv(g, x, g.dice.choice((4, 8, 5)), g.dice.choice((1, 3))) if g.coin(0.7) else x
    y = active(g, y) if g.coin() else y
    if g.coin(0.3):
        y = g.node("Mul", y, y)
    if g.coin(0.2):
        y = g.node("Transpose", y, perm=g.dice.choice(([0, 2, 3, 1], [1, 0, 2, 3], [2, 3, 0, 1])))
    axes = sorted(g.dice.sample(range(4), g.dice.randrange(1, 4)))
    axes = [axis - 4 if g.coin(0.3) else axis for axis in axes]
    kept = int(g.coin())
    if g.coin(0.25):
        z = g.node(g.dice.choice(("ArgMax", "ArgMin")), y, axis=axes[0], keepdims=kept)
        g.node("Cast", z, to=1)
        return
    z = g.node(g.dice.choice(_REDUCTIONS), y, g.ints(*axes), keepdims=kept)
    if g.coin(0.4):
        z = g.node(g.dice.choice(("Mul", "Add")), z, g.constant(g.dice.choice((0.5, 2.0))))
    if kept and g.coin():
        g.node(g.dice.choice(("Sub", "Mul", "Add")), *((y, z), (z, y))[g.coin()])


def _rearranged(g: RandomGraph) -> None:
    """Channels that are cut, shuffled and joined between layers (ShuffleNet)."""
    x = image(g)
    c = g.dice.choice((8, 12, 16))
    y = active(g, conv(g, x, c))
    n, _, h, w = g.shape(y)
    how = g.dice.randrange(4)
    if how == 0:
        y = g.node("Reshape", y, g.ints(n, 2, c // 2, h, w))
        y = g.node("Reshape", g.node("Transpose", y, perm=[0, 2, 1, 3, 4]), g.ints(n, c, h, w))
    elif how == 1:
        y = g.node("Gather", y, g.constant(g.dice.sample(range(c), c), np.int64), axis=1)
    elif how == 2:
        g.node("Split", y, g.ints(4, c - 4), outputs=2, axis=1)
        a, b = g.nodes[-1].output
        b = active(g, conv(g, b, c - 4, 3, group=g.dice.choice((1, c - 4))))
        y = g.node("Concat", *((a, b), (b, a))[g.coin()], axis=1)
    else:
        step = g.dice.choice((2, -1))
        start, end = (0, 1 << 62) if step > 0 else (c - 1, -c - 1)
        y = g.node("Slice", y, g.ints(start), g.ints(end), g.ints(1), g.ints(step))
    if g.coin(0.7):
        group = g.dice.choice([k for k in (1, 2) if g.shape(y)[1] % k == 0])
        conv(g, y, group * g.width(), g.dice.choice((1, 3)), group=group)


def _in_a_row(g: RandomGraph) -> None:
    """Convolutions without anything in between."""
    x = image(g)
    for _ in range(g.dice.randrange(2, 4)):
        x = conv(g, x, g.dice.choice((2, 4, 8)), g.dice.choice((1, 1, 3)))
    if g.coin():
        x = conv(g, x, g.shape(x)[1], 3, group=g.shape(x)[1])


def _along_time(g: RandomGraph) -> None:
    """Convolutions of sequences: causal, dilated, gated (WaveNet)."""
    x = g.any(3) if g.coin(0.7) else None
    x = x or g.input((g.dice.choice((1, 2)), g.dice.choice((4, 8)), g.dice.choice((5, 8, 16))))
    _, c, length = g.shape(x)
    kernel = g.dice.choice((2, 3, 4))
    group, wide = g.dice.choice(((1, g.width()), (c, c)))
    w, bias = g.weights(wide, c // group, kernel), [g.weights(wide)] if g.coin() else []
    if g.coin():
        padded = g.node("Pad", x, g.ints(0, 0, kernel - 1, 0, 0, 0))
        y = g.node("Conv", padded, w, *bias, group=group)
    else:
        y = g.node("Conv", x, w, *bias, group=group, pads=[kernel - 1] * 2)
        if g.coin(0.8):
            y = g.node("Slice", y, g.ints(0), g.ints(length), g.ints(2))
    y = active(g, y)
    if g.coin():
        g.node("Transpose", y, perm=[0, 2, 1])


#: How often each is drawn.
IMAGES: dict[Maker, float] = {
    _block: 4,
    _downsampled: 1,
    _inception: 1.5,
    _dense: 1,
    _inverted: 1.5,
    _prenormed: 1,
    _activated: 1,
    _flattened: 1,
    _larger: 1.5,
    _styled: 0.7,
    _reduced: 2,
    _rearranged: 1,
    _in_a_row: 1,
    _along_time: 1,
}
