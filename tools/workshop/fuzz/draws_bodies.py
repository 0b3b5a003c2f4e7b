"""What a random graph may grow by: sequences; If, Loop and Scan, whose bodies read outer values."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from .growing import FLOAT, Maker, RandomGraph

_SHAPELESS = ("Relu", "Neg", "Tanh", "Abs", "Sigmoid")


def _keep(g: RandomGraph, x: str, others: tuple[str, ...] = ()) -> str:
    """Add some nodes whose last result has the shape of `x`; they may read outer tensors."""
    shape = g.shape(x)
    for _ in range(g.dice.randrange(1, 4)):
        how = g.dice.randrange(6)
        if how == 0:
            x = g.node(g.dice.choice(_SHAPELESS), x)
        elif how == 1:
            x = g.node("Mul", x, g.constant(g.dice.choice((0.5, 1.0, -1.0, 0.0))))
        elif how == 2:
            outer = g.need()
            mean = g.node("ReduceMean", outer, keepdims=0)
            x = g.node("Add", x, mean)
        elif how == 3:
            same = [n for n, t in g.types.items() if t == (FLOAT, shape)]
            x = g.node(g.dice.choice(("Add", "Sub", "Mul")), x, g.dice.choice(same))
        elif how == 4 and others:
            x = g.node("Add", x, g.dice.choice(others))
        elif len(shape) >= 2:
            x = g.node("MatMul", x, g.weights(shape[-1], shape[-1]))
    return x if g.nodes else g.node("Identity", x)


def _condition(g: RandomGraph) -> str:
    how = g.dice.randrange(4)
    if how == 0:
        return g.constant(g.coin(), bool)
    if how == 1 and (found := g.any(0, dtype=TensorProto.BOOL)):
        return found
    total = g.node("ReduceSum", g.need(), keepdims=0)
    return g.node("Greater", total, g.constant(0.123))


def _if(g: RandomGraph) -> None:
    condition, x = _condition(g), g.need()
    bodies = {}
    count = g.dice.choice((1, 1, 2))
    for branch in ("then_branch", "else_branch"):
        body = g.inner()
        if g.coin(0.2):
            results = [body.node("Identity", x) for _ in range(count)]
        else:
            results = [_keep(body, x) for _ in range(count)]
        bodies[branch] = body.body([], results)
    g.complex("If", [condition], [g.types[x]] * count, **bodies)


def _loop(g: RandomGraph) -> None:
    """A loop of a few steps: its count is known, or its condition ends it."""
    x = g.need()
    trips = g.dice.choice((0, 1, 2, 3))
    body = g.inner()
    step = body.argument("step", TensorProto.INT64, ())
    going = body.argument("going", TensorProto.BOOL, ())
    states = [body.argument("state", *g.types[x])]
    given = [x]
    counter = ""
    if g.coin(0.4):
        counter = body.argument("counter", TensorProto.INT64, ())
        states.append(counter)
        given.append(g.constant(g.dice.choice((0, 2)), np.int64))
    y = _keep(body, states[0])
    if g.coin():
        y = body.node("Add", y, body.node("Cast", step, to=FLOAT))
    results = [y]
    if counter:
        results.append(body.node("Add", counter, body.constant(1, np.int64)))
    how = g.dice.randrange(4)
    if how == 0:
        again = body.node("Identity", going)
    elif how == 1:
        again = body.constant(True, bool)
        again = body.node("Identity", again)
    elif how == 2:
        limit = body.constant(g.dice.choice((1, 2)), np.int64)
        again = body.node("Less", results[1] if counter else step, limit)
    else:
        total = body.node("ReduceSum", y, keepdims=0)
        again = body.node("Less", total, body.constant(3.21))
    scanned = []
    if g.coin(0.4) and how < 2 and trips:
        scanned.append(_keep(body, y) if g.coin() else y)
        scanned[0] = body.node("Identity", scanned[0])
    unlimited = how == 2 and g.coin(0.4)
    first = "" if unlimited else g.constant(trips, np.int64)
    start = "" if g.coin(0.4) else g.constant(True, bool)
    if unlimited and not start:
        start = g.constant(True, bool)
    types = [g.types[name] for name in given]
    types += [(body.types[s][0], (trips, *body.types[s][1])) for s in scanned]
    made = body.body([step, going, *states], [again, *results, *scanned])
    g.complex("Loop", [first, start, *given], types, body=made)


def _scan(g: RandomGraph) -> None:
    x = g.need(2, 3, 4)
    shape = g.shape(x)
    axis = g.dice.randrange(len(shape))
    part = tuple(d for i, d in enumerate(shape) if i != axis)
    body = g.inner()
    state, row = body.argument("state", FLOAT, part), body.argument("row", FLOAT, part)
    total = body.node(g.dice.choice(("Add", "Max", "Mul")), state, row)
    total = _keep(body, total, (row,))
    out = body.node("Identity", _keep(body, total))
    start = g.node("ReduceMean", x, g.constant([axis], np.int64), keepdims=0)
    where = g.dice.randrange(len(shape)) if g.coin(0.3) else 0
    stacked = (*part[:where], shape[axis], *part[where:])
    g.complex(
        "Scan",
        [start, x],
        [(FLOAT, part), (FLOAT, stacked)],
        body=body.body([state, row], [total, out]),
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_input_directions=[g.dice.randrange(2)],
        scan_output_axes=[where],
        scan_output_directions=[g.dice.randrange(2)],
    )


def _sequence(g: RandomGraph) -> None:
    """Parts of a tensor as a sequence, of which some are taken out again."""
    x = g.need()
    shape = g.shape(x)
    axis = g.axis(shape)
    length = shape[axis]
    kept = int(g.coin())
    name = f"{g.prefix}q{len(g.nodes)}"
    if g.coin():
        g.nodes.append(helper.make_node("SplitToSequence", [x], [name], axis=axis, keepdims=kept))
        part = tuple(
            1 if i == axis % len(shape) else d
            for i, d in enumerate(shape)
            if kept or i != axis % len(shape)
        )
    else:
        same = [n for n, t in g.types.items() if t == (FLOAT, shape)]
        length = g.dice.randrange(1, 4)
        items = [x, *(g.dice.choice(same) for _ in range(length - 1))]
        g.nodes.append(helper.make_node("SequenceConstruct", items, [name]))
        part = shape
    if g.coin(0.3) and part == shape:
        other = f"{name}i"
        inputs = [name, x, *([g.constant(0, np.int64)] if g.coin() else [])]
        g.nodes.append(helper.make_node("SequenceInsert", inputs, [other]))
        name, length = other, length + 1
    if g.coin(0.3) and length > 1:
        other = f"{name}e"
        g.nodes.append(helper.make_node("SequenceErase", [name, g.constant(-1, np.int64)], [other]))
        name, length = other, length - 1
    how = g.dice.randrange(3)
    if how == 0:
        at = g.dice.randrange(-length, length)
        g.raw("SequenceAt", [name, g.constant(at, np.int64)], part)
    elif how == 1 and part:
        joined = g.dice.randrange(len(part))
        whole = tuple(d * length if i == joined else d for i, d in enumerate(part))
        g.raw("ConcatFromSequence", [name], whole, axis=joined)
    elif how == 2:
        joined = g.dice.randrange(len(part) + 1)
        whole = (*part[:joined], length, *part[joined:])
        g.raw("ConcatFromSequence", [name], whole, axis=joined, new_axis=1)
    else:
        raise ValueError("nothing reads it")


#: How often each is drawn.
BODIES: dict[Maker, float] = {_if: 1.5, _loop: 2, _scan: 1, _sequence: 1}
