"""What a random graph may grow by: averages and views in front of layers, and unrolled loops."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from .growing import Maker, RandomGraph
from .motifs_images import active, image, normed


def _pixels(g: RandomGraph) -> str:
    """Draw an image, or add an input of lines, pixels or voxels."""
    if g.coin(0.4):
        return image(g)
    sizes = (g.dice.choice((1, 2, 3, 5)) for _ in range(g.dice.choice((1, 2, 2, 3))))
    return g.input((g.dice.choice((1, 2, 3)), g.dice.choice((2, 3, 4, 8)), *sizes))


def _averaged(g: RandomGraph, x: str, *, around: bool) -> str:
    """Average windows, any ones, or one around each pixel."""
    sizes = g.shape(x)[2:]
    kernel = [g.dice.choice((1, 2, 3, 3)) for _ in sizes]
    far = [g.dice.choice((1, 1, 1, 2)) for _ in sizes]
    more = [(k - 1) * d for k, d in zip(kernel, far, strict=True)]
    begin = [g.dice.choice((each // 2, each // 2, g.dice.randint(0, each))) for each in more]
    end = [each - first for each, first in zip(more, begin, strict=True)]
    steps = [1 if around else g.dice.choice((1, 2)) for _ in sizes]
    if not around and g.coin() and all(a > b for a, b in zip(sizes, more, strict=True)):
        begin, end = [0] * len(sizes), [0] * len(sizes)
    given: dict[str, Any] = {"kernel_shape": kernel, "pads": [*begin, *end], "strides": steps}
    if max(far) > 1:
        given["dilations"] = far
    counts, covers = int(g.coin()), int(g.coin(0.3))
    return g.node("AveragePool", x, count_include_pad=counts, ceil_mode=covers, **given)


def _averages_of_layers(g: RandomGraph) -> None:
    """Windows are averaged in front of a layer of fewer channels, as in Inception."""
    x = _pixels(g)
    x = normed(g, x) if g.coin(0.3) else x
    y = _averaged(g, x, around=g.coin(0.8))
    c = g.shape(y)[1]
    group = 2 if c % 2 == 0 and g.coin(0.2) else 1
    width = group * g.dice.choice((1, 2, max(1, c // 2)))
    bias = [g.weights(width)] if g.coin(0.7) else []
    w = g.weights(width, c // group, *(1 for _ in g.shape(y)[2:]))
    y = g.node("Conv", y, w, *bias, group=group)
    active(g, normed(g, y) if g.coin(0.4) else y)


def _views_of_norms(g: RandomGraph) -> None:
    """Layers read a normalization behind averages and views (NextViT, last layers)."""
    x = _pixels(g)
    n, c, *sizes = g.shape(x)
    norm = [g.weights(c), g.weights(c), g.weights(c), g.node("Abs", g.weights(c))]
    x = g.node("BatchNormalization", active(g, x), *norm)
    for _ in range(g.dice.choice((1, 1, 2))):
        kind = g.dice.choice(("rows", "pooled rows", "flat", "mean", "window"))
        y = x
        if kind == "mean":
            y = g.node("ReduceMean", x, g.ints(*range(2, 2 + len(sizes))), keepdims=int(g.coin()))
            y = g.node("Reshape", y, g.ints(n, c))
        elif kind == "flat":
            y = g.node("Flatten", x)
        elif kind == "window":
            y = _averaged(g, x, around=False)
            g.node("Conv", y, g.weights(g.width(), c, *(1 for _ in sizes)))
            continue
        else:
            y = g.node("Reshape", x, g.ints(n, c, prod(sizes)))
            y = _averaged(g, y, around=False) if kind == "pooled rows" else y
            y = g.node("Transpose", y, perm=[0, 2, 1])
        y = g.node("MatMul", y, g.weights(g.shape(y)[-1], g.width()))
        if g.coin():
            g.node("Add", y, g.weights(g.shape(y)[-1]))


def _steps(g: RandomGraph) -> None:
    """A recurrence of sums that an exporter has unrolled (Mamba)."""
    n, length, c = g.dice.choice((1, 2)), g.dice.choice((4, 5, 6, 8)), g.dice.choice((1, 2, 4))
    x = g.input((n, length, c))
    rows = g.node("MatMul", x, g.weights(c, c))
    gates = g.node("Sigmoid", rows) if g.coin() else ""
    one = g.node("Abs", g.weights(c)) if not gates else ""
    state, found = g.input((n, c)), list[str]()
    for step in range(length):
        place = g.constant(step, np.int64)
        by = g.node("Gather", gates, place, axis=1) if gates else one
        state = g.node("Mul", state, by)
        state = g.node("Add", state, g.node("Gather", rows, place, axis=1))
        found.append(g.node("Unsqueeze", state, g.ints(1)))
    y = g.node("Concat", *found, axis=1)
    if g.coin():
        g.node("MatMul", y, g.weights(c, g.width()))


#: How often each is drawn.
AVERAGES: dict[Maker, float] = {_averages_of_layers: 1.5, _views_of_norms: 1.5, _steps: 0.5}
