"""Small changes of a model's nodes, and of what lies between them.

A change edits a `Mutation` and leaves types to `Mutation.settle`. One that raises `ValueError`,
`KeyError` or `IndexError` is not made: the model has nothing of its kind, or becomes none.
"""

from __future__ import annotations

from math import prod

import numpy as np
from onnx import NodeProto, TensorProto

from .mutation import Change, Mutation
from .respelling import respelled

_UNARY = ("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Exp", "Gelu", "HardSwish", "Erf", "Softplus")
_BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min")
#: Operators that take each other's inputs and attributes.
_ALIKE = (
    _UNARY,
    ("Cos", "Sin", "Sqrt", "Exp", "Abs", "Reciprocal", "Log"),
    _BINARY,
    ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2", "ReduceL1"),
    ("Softmax", "LogSoftmax", "Hardmax"),
    ("GlobalAveragePool", "GlobalMaxPool"),
    ("MaxPool", "AveragePool"),
    ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"),
    ("And", "Or", "Xor"),
    ("LpNormalization", "Softmax"),
)


def operator(m: Mutation) -> None:
    """A node is of another operator of its kind."""
    node = m.nodes[m.node(*{kind for group in _ALIKE for kind in group})]
    group = m.dice.choice([group for group in _ALIKE if node.op_type in group])
    node.op_type = m.dice.choice([kind for kind in group if kind != node.op_type])


def operands(m: Mutation) -> None:
    """A node's operands change places, or it reads one of them twice."""
    node = m.nodes[m.node()]
    i, j = m.dice.sample(range(len(node.input)), 2)
    if m.dice.random() < 0.7:
        node.input[i], node.input[j] = node.input[j], node.input[i]
    else:
        node.input[i] = node.input[j]


def other_source(m: Mutation) -> None:
    """A node reads another tensor of the same type."""
    at, place = m.edge(floats=False)
    name = m.nodes[at].input[place]
    known = {*m.feeds, *(n for node in m.nodes[:at] for n in node.output)}
    m.nodes[at].input[place] = m.dice.choice(
        [n for n in sorted(known) if n != name and m.types.get(n) == m.types[name]]
    )


def doubled(m: Mutation) -> None:
    """A node is there twice, and some of its readers read the other one; or it is applied twice."""
    at = m.node()
    node = NodeProto()
    node.CopyFrom(m.nodes[at])
    names = list(node.output)
    node.output[:] = [m.fresh(name) for name in names]
    if m.dice.random() < 0.3 and m.types[names[0]] == m.types[node.input[0]]:
        node.input[0] = names[0]
        m.replace(names[0], node.output[0], after=at + 1)
        m.nodes.insert(at + 1, node)
        return
    if m.dice.random() < 0.4:  # and it has weights of its own
        for place, name in enumerate(node.input):
            if name in m.constants and m.is_float(name):
                node.input[place] = m.constant(m.constants[name][::-1].copy())
    m.nodes.insert(at, node)
    for old, new in zip(names, node.output, strict=True):
        m.replace(old, new, m.dice.choice((0.5, 1.0)), after=at + 2)
    if m.dice.random() < 0.3:
        m.output(node.output[0])


def bypassed(m: Mutation) -> None:
    """A node that keeps the type is left out."""
    able = [
        (i, place)
        for i, node in enumerate(m.nodes)
        for place, name in enumerate(node.input)
        if name and m.types.get(name) == m.types.get(node.output[0]) and name not in m.constants
    ]
    at, place = m.dice.choice(able)
    m.replace(m.nodes[at].output[0], m.nodes[at].input[place], after=at + 1)


# ── edges ────────────────────────────────────────────────────────────────────────────────────────


def _behind(m: Mutation, name: str) -> int:
    """Return the position behind the node that computes a tensor."""
    return next((i + 1 for i, node in enumerate(m.nodes) if name in node.output), 0)


def another_reader(m: Mutation) -> None:
    """An intermediate result is read by another node, whose result is an output."""
    name = m.dice.choice([n for n in m.computed if m.is_float(n)])
    at, kind = _behind(m, name), m.dice.choice(("Neg", "Relu", "Add", "ReduceSum", "Transpose"))
    rank = len(m.shape(name))
    if kind == "Transpose":
        result = m.insert(at, kind, [name], perm=m.dice.sample(range(rank), rank))
    else:
        result = m.insert(at, kind, [name, name] if kind == "Add" else [name])
    m.output(result)


def another_output(m: Mutation) -> None:
    """An intermediate result is an output."""
    m.output(m.dice.choice([n for n in m.computed if n not in m.outputs]))


def fewer_outputs(m: Mutation) -> None:
    """An output is none any more."""
    at = m.dice.randrange(len(m.outputs))
    if len(m.outputs) > 1:
        del m.model.graph.output[at]


def in_between(m: Mutation) -> None:
    """An elementwise node is between a tensor and a reader."""
    at, place = m.edge()
    name, node = m.nodes[at].input[place], m.nodes[at]
    shape = m.shape(name)
    if m.dice.random() < 0.3:
        made = m.insert(at, m.dice.choice(_UNARY), [name])
    else:
        of = [1 if m.dice.random() < 0.5 else size for size in shape]
        drop = m.dice.randrange(len(of) + 1) if of else 0
        rng = np.random.default_rng(m.dice.getrandbits(32))
        data = rng.standard_normal(of[drop:]).astype(np.float32)
        pair = [name, m.constant(data)]
        made = m.insert(at, m.dice.choice(_BINARY), pair if m.dice.random() < 0.7 else pair[::-1])
    node.input[place] = made


def transposed(m: Mutation) -> None:
    """A tensor is transposed on its way to a reader; what that computes is transposed back."""
    at, place = m.edge()
    node, rank = m.nodes[at], len(m.shape(m.nodes[at].input[place]))
    perm = m.dice.sample(range(rank), rank)
    node.input[place] = m.insert(at, "Transpose", [node.input[place]], perm=perm)
    if m.dice.random() < 0.6:
        back = m.insert(at + 2, "Transpose", [node.output[0]], perm=np.argsort(perm).tolist())
        m.replace(node.output[0], back, after=at + 3)


def viewed(m: Mutation) -> None:
    """A tensor is viewed on its way: as another shape, and maybe back."""
    at, place = m.edge()
    node, shape = m.nodes[at], m.shape(m.nodes[at].input[place])
    cut = m.dice.randrange(len(shape) + 1)
    axis = min(cut, len(shape) - 1)
    factors = [d for d in range(1, shape[axis] + 1) if shape[axis] and shape[axis] % d == 0]
    if m.dice.random() < 0.5 and factors:
        factor = m.dice.choice(factors)
        to = (*shape[:axis], factor, shape[axis] // factor, *shape[axis + 1 :])
    else:
        to = (*shape[:cut], prod(shape[cut:])) if m.dice.random() < 0.5 else (-1, *shape[cut:])
    made = m.insert(at, "Reshape", [node.input[place], m.constant(to, np.int64)])
    if m.dice.random() < 0.6:
        made = m.insert(at + 1, "Reshape", [made, m.constant(shape, np.int64)])
    node.input[place] = made


def part(m: Mutation) -> None:
    """A reader gets a part of a tensor, or its elements in another order."""
    at, place = m.edge(floats=False)
    node, shape = m.nodes[at], m.shape(m.nodes[at].input[place])
    axis = m.dice.randrange(len(shape))
    length = shape[axis]
    if m.dice.random() < 0.6:
        step = m.dice.choice((1, 1, 1, 2, -1))
        first, last = sorted((m.dice.randrange(length + 1), m.dice.randrange(length + 1)))
        ends = (last - 1, first - 1 if first else -length - 1) if step < 0 else (first, last)
        given = (m.constant([each], np.int64) for each in (*ends, axis, step))
        made = m.insert(at, "Slice", [node.input[place], *given])
    else:
        order = m.dice.choices(range(length), k=m.dice.choice((length, length, 1, 2)))
        places = m.constant(order, np.int64)
        made = m.insert(at, "Gather", [node.input[place], places], axis=axis)
    node.input[place] = made


def broadcast(m: Mutation) -> None:
    """A broadcast of a tensor is explicit, or an Expand is left out."""
    expands = [i for i, node in enumerate(m.nodes) if node.op_type == "Expand"]
    if expands and m.dice.random() < 0.5:
        at = m.dice.choice(expands)
        m.replace(m.nodes[at].output[0], m.nodes[at].input[0], after=at + 1)
        return
    at, place = m.edge(floats=False)
    node = m.nodes[at]
    whole = np.broadcast_shapes(*(m.shape(name) for name in node.input if name))
    if m.dice.random() < 0.3:
        whole = (m.dice.choice((1, 2, 3)), *whole)
    node.input[place] = m.insert(at, "Expand", [node.input[place], m.constant(whole, np.int64)])


def other_type(m: Mutation) -> None:
    """A node computes in another type: float64, float16, or, cut off, int32."""
    at, place = m.edge()
    kind = m.dice.choice((TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.INT32))
    node = m.nodes[at]
    made = m.insert(at, "Cast", [node.input[place]], to=kind)
    if m.dice.random() < 0.5:
        made = m.insert(at + 1, "Cast", [made], to=TensorProto.FLOAT)
        node.input[place] = made
        return
    floats = [i for i, name in enumerate(node.input) if name and m.is_float(name) and i != place]
    node.input[place] = made
    for i in floats:
        node.input[i] = m.insert(at + 1, "Cast", [node.input[i]], to=kind)
    behind = at + 1 + len(floats)
    back = m.insert(behind + 1, "Cast", [node.output[0]], to=TensorProto.FLOAT)
    m.replace(node.output[0], back, after=behind + 2)


def joined(m: Mutation) -> None:
    """A Concat joins one more, one twice, or in another order."""
    node = m.nodes[m.node("Concat", "Sum", "Max", "Min", "Mean")]
    at = m.dice.randrange(len(node.input))
    how = m.dice.randrange(3)
    if how == 0:
        node.input.insert(at, m.dice.choice(list(node.input)))
    elif how == 1 and len(node.input) > 1:
        del node.input[at]
    else:
        node.input[:] = m.dice.sample(list(node.input), len(node.input))


def added(m: Mutation) -> None:
    """A tensor is added to another one of its type that comes later, or multiplied by it."""
    late = m.dice.choice([n for n in m.computed if m.is_float(n)])
    at = _behind(m, late)
    known = {*m.feeds, *(n for node in m.nodes[:at] for n in node.output)}
    same = [n for n in sorted(known) if n != late and m.types.get(n) == m.types[late]]
    pair = [late, m.dice.choice(same)]
    made = m.insert(at, m.dice.choice(_BINARY), pair if m.dice.random() < 0.6 else pair[::-1])
    m.replace(late, made, after=at + 1)
    if late in m.outputs:
        m.output(made)


def words(m: Mutation) -> None:
    """Some nodes are written in other words; see `respelling`."""
    model, _ = m.finished()
    other = Mutation.of(respelled(model, m.dice, 0.3), m.feeds, m.dice)
    m.model, m.constants, m.types = other.model, {**m.constants, **other.constants}, other.types


#: How often each is drawn.
NODES: dict[Change, float] = {
    operator: 2,
    operands: 1.5,
    other_source: 2,
    doubled: 1.5,
    bypassed: 1.5,
    another_reader: 2,
    another_output: 1.5,
    fewer_outputs: 1,
    in_between: 2,
    transposed: 1.5,
    viewed: 1,
    part: 1,
    broadcast: 1,
    other_type: 1,
    joined: 1,
    added: 1,
    words: 1.5,
}
