"""What a random graph may grow by: operators with attributes and inputs that are given rarely."""

from __future__ import annotations

from typing import Any

import numpy as np

from .growing import FLOAT, Maker, RandomGraph

_SLOPES: dict[str, tuple[dict[str, Any], ...]] = {
    "LeakyRelu": ({"alpha": 0.3}, {"alpha": 0.0}, {"alpha": -0.5}),
    "Elu": ({"alpha": 0.5}, {"alpha": 2.0}),
    "Selu": ({}, {"alpha": 1.2, "gamma": 0.7}),
    "Celu": ({"alpha": 0.6},),
    "HardSigmoid": ({"alpha": 0.4, "beta": 0.3}, {"alpha": 1 / 6}),
    "ThresholdedRelu": ({"alpha": 0.2},),
    "Shrink": ({"lambd": 0.2}, {"lambd": 0.3, "bias": 0.3}),
}
_PADDED = ("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET")


def _slope(g: RandomGraph) -> None:
    kind = g.dice.choice(tuple(_SLOPES))
    g.node(kind, g.need(), **g.dice.choice(_SLOPES[kind]))


def _dropout(g: RandomGraph) -> None:
    ratio = g.constant(g.dice.choice((0.0, 0.4)))
    training = [g.constant(value=False, dtype=np.bool_)] if g.coin() else []
    g.node("Dropout", g.need(), ratio, *training, outputs=g.dice.choice((1, 2)))


def _window(g: RandomGraph, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Draw the attributes of a window that fits, with no pads or pads of its own."""
    kernel = [g.dice.choice([k for k in (1, 2, 3) if k <= size]) for size in sizes]
    auto = g.dice.choice(_PADDED)
    strides = [g.dice.choice((1, 1, 2)) if k > 1 else 1 for k in kernel]
    found: dict[str, Any] = {"kernel_shape": kernel, "auto_pad": auto, "strides": strides}
    if auto in ("VALID", "NOTSET"):
        pairs = zip(kernel, sizes, strict=True)
        found["dilations"] = [2 if 2 * k - 1 <= size and g.coin() else 1 for k, size in pairs]
    return found


def _conv(g: RandomGraph) -> None:
    x = g.need(3, 4, 5)
    _, channels, *sizes = g.shape(x)
    window, group = _window(g, tuple(sizes)), g.dice.choice((1, 1, channels))
    width = group * g.dice.choice((1, 2, 3))
    w = g.weights(width, channels // group, *window["kernel_shape"])
    if g.coin(0.3):
        del window["kernel_shape"]
    g.node("Conv", x, w, *([g.weights(width)] if g.coin() else []), group=group, **window)


def _conv_transpose(g: RandomGraph) -> None:
    x = g.need(3, 4)
    _, channels, *sizes = g.shape(x)
    group = g.dice.choice((1, 1, channels))
    kernel, strides = ([g.dice.choice((1, 2, 3)) for _ in sizes] for _ in range(2))
    given: dict[str, Any] = {
        "strides": strides,
        "dilations": [g.dice.choice((1, 2)) for _ in sizes],
    }
    if g.coin():
        given["output_padding"] = [g.dice.randrange(stride) for stride in strides]
    if all(k > 1 for k in kernel) and g.coin():
        given["pads"] = [g.dice.randrange(2) for _ in (*sizes, *sizes)]
    w = g.weights(channels, g.dice.choice((1, 2)), *kernel)
    g.node("ConvTranspose", x, w, group=group, **given)


def _integers(g: RandomGraph) -> None:
    """A convolution of integers, whose products are exact."""
    x = g.need(4)
    channels, window = g.shape(x)[1], _window(g, g.shape(x)[2:])
    dtype = g.dice.choice((np.int8, np.uint8))
    rng = np.random.default_rng(g.dice.getrandbits(32))
    w = g.constant(rng.integers(0, 90, (3, channels, *window["kernel_shape"])), dtype)
    scale, zero = g.constant(0.05), g.constant(g.dice.choice((0, 128)), np.uint8)
    y = g.node("QuantizeLinear", x, scale, zero)
    if g.coin():
        of_rows = np.full(3, 2, dtype) if g.coin() else np.array(2, dtype)
        zeros = (zero, g.constant(of_rows, dtype)) if g.coin() else (zero,)
        g.node("Cast", g.node("ConvInteger", y, w, *zeros, **window), to=FLOAT)
        return
    of_rows = g.constant(np.full(3, 0.01)), g.constant(np.zeros(3), dtype)
    result = g.constant(0.3), g.constant(3, np.uint8)
    y = g.node("QLinearConv", y, scale, zero, w, *of_rows, *result, **window)
    g.node("DequantizeLinear", y, *result)


def _pool(g: RandomGraph) -> None:
    x = g.need(3, 4, 5)
    window, kind = _window(g, g.shape(x)[2:]), g.dice.choice(("MaxPool", "AveragePool", "LpPool"))
    if kind == "MaxPool":
        y = g.node(kind, x, outputs=g.dice.choice((1, 2)), **window, storage_order=int(g.coin()))
    elif kind == "AveragePool":
        y = g.node(kind, x, **window, count_include_pad=int(g.coin()))
    else:
        y = g.node(kind, x, **window, p=g.dice.choice((1, 2, 3)))
    if g.coin(0.3):
        g.node("Relu", y)


def _batch_norm(g: RandomGraph) -> None:
    x = g.need(2, 3, 4)
    width = g.shape(x)[1]
    scale = (g.weights(width), g.weights(width), g.weights(width))
    variance = g.constant(np.full(width, g.dice.choice((0.7, 1e-3))))
    epsilon, momentum = g.dice.choice((1e-5, 1e-3, 0.1)), g.dice.choice((0.9, 0.99))
    g.node("BatchNormalization", x, *scale, variance, epsilon=epsilon, momentum=momentum)


def _resize(g: RandomGraph) -> None:
    x, mode = g.need(4), g.dice.choice(("nearest", "linear", "cubic"))
    given: dict[str, Any] = {"mode": mode}
    conventions = ("half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric")
    given["coordinate_transformation_mode"] = g.dice.choice(conventions)
    if mode == "nearest":
        rounding = ("round_prefer_ceil", "round_prefer_floor", "ceil", "floor")
        given["nearest_mode"] = g.dice.choice(rounding)
    if mode == "cubic":
        given |= {"cubic_coeff_a": g.dice.choice((-0.5, -0.75)), "exclude_outside": int(g.coin())}
    sizes = [size * g.dice.choice((1, 2, 3)) for size in g.shape(x)[2:]]
    g.node("Resize", x, "", "", g.ints(*sizes), axes=[2, 3], **given)


def _recurrent(g: RandomGraph) -> None:
    """A layer with states, lengths or activations of its own."""
    x = g.need(3)
    steps, batch, size = g.shape(x)
    kind, gates = g.dice.choice((("LSTM", 4), ("GRU", 3), ("RNN", 1)))
    ways, wide = g.dice.choice((1, 2)), 2
    given: dict[str, Any] = {"direction": "bidirectional" if ways == 2 else "reverse"}
    w, r = g.weights(ways, gates * wide, size), g.weights(ways, gates * wide, wide)
    bias = g.weights(ways, 2 * gates * wide) if g.coin() else ""
    lengths = ""
    if g.coin(0.3):
        lengths = g.constant([g.dice.randrange(1, steps + 1) for _ in range(batch)], np.int32)
    states = [g.weights(ways, batch, wide) for _ in range(2 if kind == "LSTM" else 1)]
    if kind == "GRU":
        given["linear_before_reset"] = int(g.coin())
    if kind == "LSTM" and g.coin(0.3):
        states.append(g.weights(ways, 3 * wide))
    if g.coin(0.3):
        chosen = {"LSTM": ["Sigmoid", "Softsign", "Tanh"], "GRU": ["HardSigmoid", "Tanh"]}
        given["activations"] = chosen.get(kind, ["Relu"]) * ways
    outputs = 3 if kind == "LSTM" else 2
    g.node(kind, x, w, r, bias, lengths, *states, outputs=outputs, hidden_size=wide, **given)


def _reduce(g: RandomGraph) -> None:
    x, kind = g.need(), g.dice.choice(("ReduceSum", "ReduceMean", "ReduceProd", "ReduceLogSum"))
    if kind == "ReduceLogSum":
        x = g.node("Add", g.node("Abs", x), g.constant(0.1))
    axes = g.ints() if g.coin() else ""
    g.node(kind, x, *([axes] if axes else []), keepdims=int(g.coin()), noop_with_empty_axes=1)


def _defaults(g: RandomGraph) -> None:
    """Leave out what has a default."""
    kind = g.dice.choice(("Softmax", "LogSoftmax", "Transpose", "Squeeze", "Trilu", "Flatten"))
    g.node(kind, g.need(2, 3, 4))


def _reshape(g: RandomGraph) -> None:
    x = g.need()
    g.node("Reshape", x, g.ints(*reversed(g.shape(x))), allowzero=1)


#: How often each is drawn.
RARE: dict[Maker, float] = {
    _slope: 3,
    _dropout: 1,
    _conv: 3,
    _conv_transpose: 2,
    _integers: 2,
    _pool: 3,
    _batch_norm: 2,
    _resize: 2,
    _recurrent: 2,
    _reduce: 2,
    _defaults: 2,
    _reshape: 1,
}
