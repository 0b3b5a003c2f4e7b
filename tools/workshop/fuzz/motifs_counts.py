"""What a random graph may grow by: what is counted, sampled and chosen, and rarer operators.

Detection heads (boxes, non-maximum suppression, regions), sampling at computed places, elements
whose number the data decide, losses, sequences of several lengths.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from .growing import FLOAT, Maker, RandomGraph

_INT64 = TensorProto.INT64
#: Elementwise operators with the range that their operand is brought to; some have attributes.
_CURVES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("Ceil", "", {}),
    ("Tan", "Tanh", {}),
    ("Asin", "half", {}),
    ("Acos", "half", {}),
    ("Atan", "", {}),
    ("Atanh", "half", {}),
    ("Sinh", "Tanh", {}),
    ("Cosh", "Tanh", {}),
    ("Asinh", "", {}),
    ("Acosh", "Exp", {}),
    ("Selu", "", {"alpha": 1.5}),
    ("Selu", "", {}),
    ("Shrink", "", {"lambd": 0.3, "bias": 0.1}),
    ("Dropout", "", {}),
    ("CastLike", "like", {}),
    ("Hardmax", "", {"axis": -1}),
    ("MeanVarianceNormalization", "", {}),
)


def _curves(g: RandomGraph) -> None:
    kind, bounds, attributes = g.dice.choice(_CURVES)
    x = g.need(4) if kind == "MeanVarianceNormalization" else g.need()
    if bounds == "half":
        x = g.node("Mul", g.node("Tanh", x), g.constant(0.5))
    elif bounds == "Exp":
        x = g.node("Add", g.node("Exp", g.node("Tanh", x)), g.constant(1.5))
    elif bounds == "Tanh":
        x = g.node("Tanh", x)
    like = (g.constant(1.0),) if bounds == "like" else ()
    if kind == "MeanVarianceNormalization":
        if g.shape(x)[2:] == (1, 1):  # onnxruntime takes the root of what rounding makes negative
            raise ValueError("one pixel")
        g.raw(kind, (x,), g.shape(x))
    else:
        g.node(kind, x, *like, **attributes)


def _hidden(g: RandomGraph, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
    """Add a node whose shapes the data decide: nothing else is drawn to read it."""
    names = [f"{g.prefix}h{len(g.nodes)}_{i}" for i in range(outputs)]
    title = f"{g.prefix}{kind}_{len(g.nodes)}"
    g.nodes.append(helper.make_node(kind, inputs, names, title, **attributes))
    return names[0]


def _counted(g: RandomGraph) -> None:
    """Elements that a mask chooses, at once or by their places; then sums of them."""
    x = g.need(1, 2, 3)
    shape = g.shape(x)
    kind = g.dice.choice(("Compress", "NonZero", "Unique"))
    if kind == "Compress":
        axis = g.axis(shape)
        one = np.eye(1, shape[axis], g.dice.randrange(shape[axis]))[0]  # onnxruntime adds up none
        given = g.node("Max", g.input((shape[axis],), _INT64, range(2)), g.constant(one, np.int64))
        mask = g.node("Cast", given, to=TensorProto.BOOL)
        few = _hidden(g, kind, x, mask, axis=axis)
        g.raw("ReduceSum", (few, g.ints(axis)), (*_without(shape, axis),), keepdims=0)
        return
    whole = g.input(shape, _INT64, range(3))
    if kind == "Unique":
        _hidden(g, kind, whole, outputs=4)
        found, _, inverse, _ = g.nodes[-1].output
        number = g.raw("Size", (found,), (), _INT64)
        g.node("Add", x, g.node("Cast", number, to=FLOAT))
        flat = g.raw("Reshape", (inverse, g.ints(*shape)), shape, _INT64)
        g.node("Mul", x, g.node("Cast", flat, to=FLOAT))
        return
    places = _hidden(g, "Transpose", _hidden(g, kind, whole), perm=[1, 0])
    found = _hidden(g, "GatherND", x, places)
    how = g.dice.choice(("sum", "back", "more"))
    if how == "sum":
        g.raw("ReduceSum", (found, g.ints(0)), (1,), keepdims=1)
    else:
        found = _hidden(g, "Sigmoid", found) if how == "more" else found
        g.raw("ScatterND", (x, places, found), shape, reduction=g.dice.choice(("none", "add")))


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    axis %= len(shape)
    return shape[:axis] + shape[axis + 1 :]


def _boxes(g: RandomGraph) -> None:
    """Boxes of a detection head: the best of them, suppressed by others, then sorted or counted."""
    count, classes = g.dice.choice((4, 9, 16)), g.dice.choice((1, 3))
    rng = np.random.default_rng(g.dice.getrandbits(32))
    corner = rng.random((1, count, 2)) * 8
    boxes = g.constant(np.concatenate([corner, corner + 1 + 3 * rng.random((1, count, 2))], -1))
    raw = g.input((1, classes, count))
    scores = g.node("Sigmoid", raw)
    limits = (
        g.ints(g.dice.choice((1, 3, count))),
        g.constant(g.dice.choice((0.3, 0.5, 0.9))),
        g.constant(g.dice.choice((0.0, 0.4))),
    )
    center = int(g.coin(0.3))
    kept = _hidden(g, "NonMaxSuppression", boxes, scores, *limits, center_point_box=center)
    places = _hidden(g, "GatherND", scores, kept)
    g.raw("ReduceSum", (places, g.ints(0)), (1,), keepdims=1)
    chosen = _hidden(g, "Gather", kept, g.ints(2), axis=1)
    marks = g.node("ConstantOfShape", g.ints(count), value=helper.make_tensor("v", FLOAT, [1], [0]))
    one = _hidden(g, "Cast", _hidden(g, "GreaterOrEqual", chosen, g.ints(0)), to=FLOAT)
    flat = _hidden(g, "Squeeze", one, g.ints(1))
    g.raw("ScatterND", (marks, chosen, flat), (count,), reduction="add")


def _sampled(g: RandomGraph) -> None:
    """An image sampled at places: a grid, one made by an affine map, or regions."""
    x = g.need(4)
    batch, channels, height, width = g.shape(x)
    kind = g.dice.choice(("GridSample", "AffineGrid", "RoiAlign"))
    rng = np.random.default_rng(g.dice.getrandbits(32))
    if kind == "RoiAlign":
        count = g.dice.choice((1, 3))
        corner = rng.integers(0, max(1, min(height, width) // 2), (count, 2)) + rng.random(
            (count, 2)
        )
        boxes = g.constant(np.concatenate([corner, corner + 1.3], -1))
        index = g.constant(rng.integers(0, batch, count), np.int64)
        # onnxruntime's maximum of several samples is no maximum of these
        mode, ratio = g.dice.choice((("avg", 1), ("avg", 2), ("max", 1)))
        places = g.dice.choice(("half_pixel", "output_half_pixel"))
        how = {"mode": mode, "sampling_ratio": ratio, "coordinate_transformation_mode": places}
        g.node(kind, x, boxes, index, **how, output_height=2)
        return
    align = int(g.coin())
    if kind == "AffineGrid":
        turn = 0.3 * rng.standard_normal((batch, 2, 3)) + np.eye(2, 3)
        theta = g.constant(turn) if g.coin() else g.input((batch, 2, 3))
        size = g.ints(batch, channels, *g.dice.sample((2, 3, 5), 2))
        grid = g.node(kind, theta, size, align_corners=align)
    else:
        grid = g.node("Tanh", g.input((batch, g.dice.choice((1, 3)), g.dice.choice((2, 4)), 2)))
    g.node(
        "GridSample",
        x,
        grid,
        align_corners=align,
        mode=g.dice.choice(("linear", "nearest", "cubic")) if g.coin() else "linear",
        padding_mode=g.dice.choice(("zeros", "border", "reflection")),
    )


def _pooled(g: RandomGraph) -> None:
    """Norms of windows and of neighbours, and parts cut from the middle."""
    x = g.need(4)
    channels, sides = g.shape(x)[1], g.shape(x)[2:]
    kind = g.dice.choice(("LpPool", "LRN", "GroupNormalization", "CenterCropPad"))
    if kind == "LpPool":
        size = [min(2, side) for side in sides]
        g.node(kind, x, kernel_shape=size, p=g.dice.choice((1, 2, 3)), ceil_mode=int(g.coin()))
    elif kind == "LRN":
        g.node(kind, x, size=g.dice.choice((1, 3, 5)), alpha=0.1, beta=0.5, bias=1.5)
    elif kind == "GroupNormalization":
        groups = g.dice.choice([n for n in range(1, channels + 1) if channels % n == 0])
        rows = g.weights(channels), g.weights(channels)
        g.raw(kind, (x, *rows), g.shape(x), num_groups=groups)
    else:
        axes = g.dice.sample(range(-4, 0), g.dice.choice((1, 2)))
        g.node(kind, x, g.ints(*(g.dice.choice((1, 2, 5)) for _ in axes)), axes=axes)


def _losses(g: RandomGraph) -> None:
    """Losses of classes, with weights and classes that do not count."""
    batch, classes, rest = g.dice.choice((1, 3)), g.dice.choice((2, 5)), g.dice.choice(((), (4,)))
    x = g.input((batch, classes, *rest))
    labels = g.input((batch, *rest), _INT64, range(classes))
    given = [x, labels, *([g.constant(np.linspace(0.5, 1, classes))] if g.coin() else [])]
    how: dict[str, Any] = {"reduction": g.dice.choice(("none", "mean", "sum"))}
    if g.coin(0.3):
        how["ignore_index"] = 0
    if g.coin():
        g.node("SoftmaxCrossEntropyLoss", *given, **how)
        return
    given[0] = g.node("LogSoftmax", x, axis=1)
    g.node("NegativeLogLikelihoodLoss", *given, **how)


def _sequences(g: RandomGraph) -> None:
    """Rows that are turned around up to their lengths, and products of running and whole axes."""
    length, batch = g.dice.choice((3, 5)), g.dice.choice((1, 2))
    x = g.input((length, batch, g.width()))
    lengths = g.input((batch,), _INT64, range(1, length + 1))
    axis = g.dice.choice((0, 0, 1))
    y = g.node("Transpose", x, perm=[1, 0, 2]) if axis else x
    y = g.node("ReverseSequence", y, lengths, time_axis=axis, batch_axis=1 - axis)
    kind = g.dice.choice(("ReduceProd", "ReduceLogSum", "rnn", ""))
    if kind == "rnn" and not axis:
        size, features = 3, g.shape(y)[-1]
        weights = g.weights(1, 3 * size, features), g.weights(1, 3 * size, size)
        g.node("GRU", y, *weights, outputs=2, hidden_size=size, linear_before_reset=1)
    elif kind.startswith("Reduce"):
        y = g.node("Add", g.node("Abs", y), g.constant(0.2))
        g.node(kind, y, g.ints(g.axis(g.shape(y))), keepdims=int(g.coin()))


def _squares(g: RandomGraph) -> None:
    """Determinants, identities, and whether numbers are finite."""
    size = g.dice.choice((1, 2, 3))
    x = g.input((g.dice.choice((1, 4)), size, size))
    kind = g.dice.choice(("Det", "EyeLike", "IsNaN", "IsInf"))
    if kind == "Det":
        g.node(kind, x)
    elif kind == "EyeLike":
        y = g.node("MatMul", g.input((size, 4)), g.weights(4, 3))
        g.node("Add", y, g.node(kind, y, k=g.dice.choice((-1, 0, 1))))
    else:
        low = _hidden(g, "Log", x if g.coin() else g.node("Relu", x))  # NaN or infinite
        attributes = {"detect_positive": 0} if kind == "IsInf" and g.coin() else {}
        marks = g.raw(kind, (low,), g.shape(x), TensorProto.BOOL, **attributes)
        g.node("Where", marks, g.constant(0.5), x)


#: How often each is drawn.
COUNTS: dict[Maker, float] = {
    _curves: 1.5,
    _counted: 1.5,
    _boxes: 1,
    _sampled: 1.5,
    _pooled: 1.5,
    _losses: 0.7,
    _sequences: 1,
    _squares: 0.7,
}
