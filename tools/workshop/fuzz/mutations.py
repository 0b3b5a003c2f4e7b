"""Small changes of valid models, each of which rewrites must notice or must not mind.

A change edits a `Mutation` and leaves types to `Mutation.settle`. One that raises `ValueError`,
`KeyError` or `IndexError` is not made: the model has nothing of its kind, or becomes none.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
from onnx import AttributeProto, NodeProto, TensorProto, helper

from ....runtime.ir.types import Array
from .mutation import COUNTING, Mutation, resized
from .respelling import respelled

Change = Callable[[Mutation], object]
CHANGES: dict[str, tuple[Change, float]] = {}

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
_WORDS = {
    "auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"),
    "mode": ("constant", "reflect", "edge", "wrap", "nearest", "linear", "cubic", "DCR", "CRD"),
    "coordinate_transformation_mode": ("half_pixel", "asymmetric", "align_corners"),
    "nearest_mode": ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"),
    "reduction": ("none", "add", "mul", "max", "min"),
    "approximate": ("none", "tanh"),
    "direction": ("forward", "reverse", "bidirectional", "LEFT", "RIGHT"),
}
#: Attributes that are 0 or 1.
_FLAGS = ("keepdims", "transA", "transB", "ceil_mode", "count_include_pad", "exclusive", "reverse")
_FLAGS += ("is_causal", "noop_with_empty_axes", "largest", "sorted", "onesided", "inverse")
_SIZES = (1, 2, 3, 4, 5, 6, 8, 16)


def change(often: float) -> Callable[[Change], Change]:
    """Register a change by its function's name; `often` says how likely it is drawn."""

    def register(function: Change) -> Change:
        CHANGES[function.__name__] = function, often
        return function

    return register


def mutate(mutation: Mutation, count: int) -> list[str]:
    """Make so many changes, as far as there are any to make; return their names."""
    names, weights = list(CHANGES), [often for _, often in CHANGES.values()]
    made: list[str] = []
    for _ in range(10 * count):
        (name,) = mutation.dice.choices(names, weights)
        before = mutation.copy()
        try:
            CHANGES[name][0](mutation)
            mutation.settle()
        except (KeyError, IndexError, ValueError):
            mutation.restore(before)
            continue
        made.append(name)
        if len(made) == count:
            break
    return made


# ── constants ────────────────────────────────────────────────────────────────────────────────────


def _own_constant(m: Mutation, *, floats: bool | None = None) -> tuple[NodeProto, int, Array]:
    at, place = m.constant_edge(floats=floats)
    return m.nodes[at], place, m.constants[m.nodes[at].input[place]]


@change(2)
def constant_axes(m: Mutation) -> None:
    """A constant gets axes of size 1, in front or elsewhere, or loses them."""
    node, place, data = _own_constant(m)
    ones = [axis for axis, size in enumerate(data.shape) if size == 1]
    if ones and m.dice.random() < 0.4:
        data = np.squeeze(data, m.dice.choice(ones))
    else:
        at = 0 if m.dice.random() < 0.7 else m.dice.randrange(data.ndim + 1)
        data = np.expand_dims(data, tuple(range(at, at + m.dice.randrange(1, 4))))
    node.input[place] = m.constant(data)


@change(2)
def constant_broadcast(m: Mutation) -> None:
    """A broadcast of a constant is made explicit along some axes, or implicit."""
    node, place, data = _own_constant(m, floats=True)
    others = [m.shape(n) for i, n in enumerate(node.input) if n and i != place]
    if data.ndim and m.dice.random() < 0.4:
        axis = m.dice.randrange(data.ndim)
        data = np.take(data, [0] if data.shape[axis] else [], axis)
    else:
        whole = np.broadcast_shapes(data.shape, *others)
        wide = data.reshape((1,) * (len(whole) - data.ndim) + data.shape)
        kept = [axis for axis in range(len(whole)) if m.dice.random() < 0.7]
        shape = [whole[i] if i in kept else size for i, size in enumerate(wide.shape)]
        data = np.broadcast_to(wide, shape)
    node.input[place] = m.constant(np.ascontiguousarray(data))


@change(2)
def constant_values(m: Mutation) -> None:
    """A constant holds other numbers: one that rewrites look for, or all of them at random."""
    node, place, data = _own_constant(m, floats=True)
    rng = np.random.default_rng(m.dice.getrandbits(32))
    how, data = m.dice.randrange(5), data.copy()
    if how == 0:
        data[...] = m.dice.choice((0.0, 1.0, -1.0, 0.5, 2.0))
    elif how == 1 and data.size:
        data.reshape(-1)[m.dice.randrange(data.size)] = m.dice.choice((0.0, 1.0, -1.0, 3.0))
    elif how == 2 and data.size:
        data[...] = data.flat[0]
    elif how == 3:
        data = (rng.standard_normal(data.shape) * 0.5).astype(data.dtype)
    elif data.ndim:
        axis = m.dice.randrange(data.ndim)
        data = np.flip(data, axis) if m.dice.random() < 0.5 else np.roll(data, 1, axis)
    node.input[place] = m.constant(np.ascontiguousarray(data))


@change(2)
def constant_numbers(m: Mutation) -> None:
    """Sizes, axes, places: one of them is another one, or they come in another order."""
    node, place, data = _own_constant(m, floats=False)
    if data.dtype == bool or data.size == 0:
        raise IndexError
    data, at = data.copy(), m.dice.randrange(data.size)
    if data.size > 1 and m.dice.random() < 0.3:
        data = np.roll(data, 1) if m.dice.random() < 0.5 else np.flip(data)
    elif data.size > 1 and m.dice.random() < 0.2 and data.ndim == 1:
        data = np.delete(data, at)
    else:
        old = int(data.flat[at])
        data.flat[at] = m.dice.choice((old + 1, old - 1, -1, 0, 1, 2, -old))
    node.input[place] = m.constant(np.ascontiguousarray(data))


@change(1)
def constant_given(m: Mutation) -> None:
    """A constant is an input of the model."""
    node, place, data = _own_constant(m)
    name = m.fresh("given")
    m.feeds[name] = data
    node.input[place] = name


@change(0.7)
def given_constant(m: Mutation) -> None:
    """An input of the model is a constant, for one of its readers or for all."""
    if len(m.feeds) < 2:
        raise IndexError
    name = m.dice.choice(list(m.feeds))
    m.replace(name, m.constant(m.feeds[name]), m.dice.choice((1.0, 0.5)))


@change(1)
def constant_shared(m: Mutation) -> None:
    """A constant is the same as another one of its shape."""
    node, place, data = _own_constant(m)
    name = node.input[place]
    same = [
        n for n, x in m.constants.items() if (x.shape, x.dtype) == (data.shape, data.dtype) != name
    ]
    node.input[place] = m.dice.choice([n for n in same if n != name])


@change(0.7)
def constant_dtype(m: Mutation) -> None:
    """Indices are int32."""
    node, place, data = _own_constant(m, floats=False)
    if data.dtype != np.int64:
        raise IndexError
    node.input[place] = m.constant(data, np.int32)


# ── sizes ────────────────────────────────────────────────────────────────────────────────────────


@change(3)
def size(m: Mutation) -> None:
    """A size is another one, everywhere; now and then 0."""
    sizes = sorted({size for data in m.feeds.values() for size in data.shape})
    before = m.dice.choice(sizes)
    after = m.dice.choice(_SIZES if m.dice.random() < 0.9 else (0,))
    m.feeds = {name: resized(data, before, after) for name, data in m.feeds.items()}
    for node in m.nodes:
        for place, name in enumerate(node.input):
            data = m.constants.get(name)
            if data is not None and before in (*data.shape, *data.flat[:8].tolist()):
                node.input[place] = m.constant(resized(data, before, after))
        for attribute in node.attribute:
            if attribute.name in COUNTING and attribute.i == before:
                attribute.i = after


@change(2)
def input_axis(m: Mutation) -> None:
    """An axis of an input has another size: 1, to be broadcast, or 0, or any."""
    name = m.dice.choice(list(m.feeds))
    data = m.feeds[name]
    axis = 0 if m.dice.random() < 0.4 else m.dice.randrange(max(data.ndim, 1))
    after = m.dice.choice((1, 1, 0, *_SIZES))
    m.feeds[name] = np.take(data, np.arange(after) % data.shape[axis], axis)


@change(0.7)
def input_rank(m: Mutation) -> None:
    """An input has one axis more, in front, or one fewer."""
    name = m.dice.choice(list(m.feeds))
    data = m.feeds[name]
    if data.ndim and m.dice.random() < 0.4:
        m.feeds[name] = np.take(data, 0, 0)
    else:
        m.feeds[name] = np.stack([data] * m.dice.choice((1, 1, 2)))


# ── attributes ───────────────────────────────────────────────────────────────────────────────────


@change(4)
def attribute(m: Mutation) -> None:
    """An attribute has another value, and shapes follow; or its default."""
    node = m.nodes[m.node()]
    one = m.dice.choice([a for a in node.attribute if a.type != AttributeProto.GRAPH])
    if m.dice.random() < 0.1:
        node.attribute.remove(one)
    elif one.name in _FLAGS:
        one.i = 1 - one.i
    elif one.type == AttributeProto.INT:
        one.i = m.dice.choice((one.i + 1, one.i - 1, -one.i, 0, 1, -1, 2, 1 - one.i))
    elif one.type == AttributeProto.FLOAT:
        one.f = m.dice.choice((0.0, 1.0, -1.0, 2 * one.f, one.f / 2, 0.3, 1e-3))
    elif one.type == AttributeProto.STRING:
        one.s = m.dice.choice(_WORDS[one.name]).encode()
    elif one.type == AttributeProto.INTS and len(one.ints):
        if m.dice.random() < 0.4:
            one.ints[:] = m.dice.sample(list(one.ints), len(one.ints))
        else:
            at = m.dice.randrange(len(one.ints))
            one.ints[at] = m.dice.choice((one.ints[at] + 1, one.ints[at] - 1, 0, 1, 2))


@change(1.5)
def perm(m: Mutation) -> None:
    """A Transpose permutes otherwise: two axes more or fewer change places."""
    node = m.nodes[m.node("Transpose")]
    (one,) = (a for a in node.attribute if a.name == "perm")
    i, j = m.dice.sample(range(len(one.ints)), 2)
    one.ints[i], one.ints[j] = one.ints[j], one.ints[i]


@change(1.5)
def keepdims(m: Mutation) -> None:
    """A reduction keeps the axes that it did not, or does not."""
    at = m.dice.choice([i for i, n in enumerate(m.nodes) if n.op_type.startswith("Reduce")])
    node = m.nodes[at]
    kept = [a for a in node.attribute if a.name == "keepdims"]
    was = kept[0].i if kept else 1
    for each in kept:
        node.attribute.remove(each)
    node.attribute.append(helper.make_attribute("keepdims", 1 - was))
    axes = m.constants.get(node.input[1]) if len(node.input) > 1 else None
    if axes is not None and m.dice.random() < 0.5:  # what reads it gets the old shape
        name = m.insert(
            at + 1, "Squeeze" if not was else "Unsqueeze", [node.output[0], node.input[1]]
        )
        m.replace(node.output[0], name, after=at + 2)


@change(0.4)
def opset(m: Mutation) -> None:
    """The file is of another opset."""
    (one,) = (each for each in m.model.opset_import if each.domain == "")
    one.version = m.dice.choice((13, 14, 16, 17, 18, 19, 20, 21, 22, 23, 24))


# ── nodes ────────────────────────────────────────────────────────────────────────────────────────


@change(2)
def operator(m: Mutation) -> None:
    """A node is of another operator of its kind."""
    node = m.nodes[m.node(*{kind for group in _ALIKE for kind in group})]
    group = m.dice.choice([group for group in _ALIKE if node.op_type in group])
    node.op_type = m.dice.choice([kind for kind in group if kind != node.op_type])


@change(1.5)
def operands(m: Mutation) -> None:
    """A node's operands change places, or it reads one of them twice."""
    node = m.nodes[m.node()]
    i, j = m.dice.sample(range(len(node.input)), 2)
    if m.dice.random() < 0.7:
        node.input[i], node.input[j] = node.input[j], node.input[i]
    else:
        node.input[i] = node.input[j]


@change(2)
def other_source(m: Mutation) -> None:
    """A node reads another tensor of the same type."""
    at, place = m.edge(floats=False)
    name = m.nodes[at].input[place]
    known = {*m.feeds, *(n for node in m.nodes[:at] for n in node.output)}
    m.nodes[at].input[place] = m.dice.choice(
        [n for n in sorted(known) if n != name and m.types.get(n) == m.types[name]]
    )


@change(1.5)
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


@change(1.5)
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


@change(2)
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


@change(1.5)
def another_output(m: Mutation) -> None:
    """An intermediate result is an output."""
    m.output(m.dice.choice([n for n in m.computed if n not in m.outputs]))


@change(1)
def fewer_outputs(m: Mutation) -> None:
    """An output is none any more."""
    at = m.dice.randrange(len(m.outputs))
    if len(m.outputs) > 1:
        del m.model.graph.output[at]


@change(2)
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


@change(1.5)
def turned(m: Mutation) -> None:
    """A tensor is transposed on its way to a reader; what that computes is transposed back."""
    at, place = m.edge()
    node, rank = m.nodes[at], len(m.shape(m.nodes[at].input[place]))
    perm = m.dice.sample(range(rank), rank)
    node.input[place] = m.insert(at, "Transpose", [node.input[place]], perm=perm)
    if m.dice.random() < 0.6:
        back = m.insert(at + 2, "Transpose", [node.output[0]], perm=np.argsort(perm).tolist())
        m.replace(node.output[0], back, after=at + 3)


@change(1)
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


@change(1)
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


@change(1)
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


@change(1)
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


@change(1)
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


@change(1)
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


@change(1.5)
def words(m: Mutation) -> None:
    """Some nodes are written in other words; see `respelling`."""
    model, _ = m.finished()
    other = Mutation.of(respelled(model, m.dice, 0.3), m.feeds, m.dice)
    m.model, m.constants, m.types = other.model, {**m.constants, **other.constants}, other.types
