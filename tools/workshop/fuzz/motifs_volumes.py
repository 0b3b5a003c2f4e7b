"""What a random graph may grow by: volumes, and images whose channels are normalized in groups."""

from __future__ import annotations

from math import prod

from .growing import Maker, RandomGraph
from .motifs_images import active, conv, image


def _volume(g: RandomGraph) -> str:
    sizes = (g.dice.choice((1, 2, 3, 5)) for _ in range(3))
    frames, rows, columns = (2 * size for size in sizes)
    return g.input((g.dice.choice((1, 2)), g.dice.choice((1, 3, 4, 8, 16)), frames, rows, columns))


def _conv3(g: RandomGraph, x: str, channels: int) -> str:
    """Apply a convolution of a volume: any windows, steps, pads, dilations and groups."""
    _, c, *sizes = g.shape(x)
    kernel = (
        [g.dice.choice((1, 3, 3, 2)) for _ in sizes] if g.coin() else [g.dice.choice((1, 3))] * 3
    )
    far = [g.dice.choice((1, 1, 1, 2)) for _ in sizes]
    ends = [g.dice.choice((k // 2, 0, 1)) for k in (*kernel, *kernel)]
    if g.coin(0.6):
        ends = [*(k // 2 for k in kernel)] * 2
    for size, k, d, a, b in zip(sizes, kernel, far, ends[:3], ends[3:], strict=True):
        if size + a + b < d * (k - 1) + 1:
            raise ValueError("windows are larger than the volume")
    group = g.dice.choice((1, 1, 1, c, 2 if c % 2 == 0 else 1))
    channels = -(-channels // group) * group
    steps = [g.dice.choice((1, 1, 2)) for _ in sizes]
    given = [g.weights(channels, c // group, *kernel), *([g.weights(channels)] if g.coin() else [])]
    return g.node("Conv", x, *given, pads=ends, strides=steps, dilations=far, group=group)


def _volumes(g: RandomGraph) -> None:
    """Convolutions of volumes with what stands around them (videos, scans of bodies)."""
    x = _volume(g)
    for _ in range(g.dice.choice((1, 1, 2))):
        x = _conv3(g, x, g.dice.choice((1, 4, 5, 8, 16)))
        channels = g.shape(x)[1]
        kind = g.dice.choice(("", "norm", "instance", "scale"))
        if kind == "norm":
            numbers = [g.weights(channels) for _ in range(3)]
            x = g.node("BatchNormalization", x, *numbers, g.node("Abs", g.weights(channels)))
        elif kind == "instance":
            x = g.node("InstanceNormalization", x, g.weights(channels), g.weights(channels))
        elif kind == "scale":
            x = g.node("Mul", x, g.weights(channels, 1, 1, 1))
        x = active(g, x)
    kind = g.dice.choice(("", "pool", "larger", "patches", "mean", "skip"))
    n, c, *sizes = g.shape(x)
    if kind == "pool" and min(sizes) > 1:
        g.node(g.dice.choice(("MaxPool", "AveragePool")), x, kernel_shape=[2] * 3, strides=[2] * 3)
    elif kind == "larger":
        g.node("ConvTranspose", x, g.weights(c, g.width(), 2, 2, 2), strides=[2] * 3)
    elif kind == "patches":
        y = g.node("Transpose", g.node("Reshape", x, g.ints(n, c, prod(sizes))), perm=[0, 2, 1])
        g.node("MatMul", y, g.weights(c, g.width()))
    elif kind == "mean":
        g.node("ReduceMean", x, g.ints(2, 3, 4), keepdims=int(g.coin()))
    elif kind == "skip":
        g.node("Concat", x, g.input((n, g.width(), *sizes)), axis=1)


def _grouped(g: RandomGraph, x: str) -> str:
    """Normalize groups of channels: the operator, or spelled."""
    n, c, *sizes = g.shape(x)
    groups = g.dice.choice([k for k in (1, 2, 3, 4, c) if c % k == 0])
    if g.coin():
        return g.node("GroupNormalization", x, g.weights(c), g.weights(c), num_groups=groups)
    ones = [g.constant([1.0] * groups), g.constant([0.0] * groups)]
    y = g.node("Reshape", x, g.ints(n, groups, -1))
    y = g.node("Reshape", g.node("InstanceNormalization", y, *ones), g.ints(n, c, *sizes))
    y = g.node("Mul", y, g.weights(c, *[1] * len(sizes)))
    return g.node("Add", y, g.weights(c, *[1] * len(sizes))) if g.coin(0.8) else y


def _joined_norms(g: RandomGraph) -> None:
    """Norms of groups that read what is joined, and whose parts are joined or cut (U-Nets)."""
    x = image(g, fresh=1)
    n, c, *sizes = g.shape(x)
    given = [conv(g, x, c, 3) if g.coin() else x, g.input((n, g.dice.choice((c, 2 * c)), *sizes))]
    g.dice.shuffle(given)
    y = g.node("Concat", *given, axis=1)
    if g.coin(0.4):
        conv(g, y, c, 1)
    y = _grouped(g, y)
    if g.coin(0.7):
        y = g.node("Mul", y, g.node("Sigmoid", y))
    kind = g.dice.choice(("conv", "cut", "joined", "time"))
    if kind == "conv":
        conv(g, y, g.width(), 3)
    elif kind == "cut":
        many = g.shape(y)[1]
        at = g.dice.randrange(1, many)
        g.node("Split", y, g.ints(at, many - at), outputs=2, axis=1)
        conv(g, g.dice.choice(list(g.nodes[-1].output)), g.width(), g.dice.choice((1, 3)))
    elif kind == "joined":
        g.node("Concat", _grouped(g, given[0]), y, axis=1)
    else:
        many = g.shape(y)[1]
        time = g.node("Unsqueeze", g.input((n, many)), g.ints(2, 3))
        y = _grouped(g, g.node("Add", conv(g, y, many, 3), time))
        g.node("Relu", y)


#: How often each is drawn.
VOLUMES: dict[Maker, float] = {_volumes: 2, _joined_norms: 1}
