"""Small changes of a model's constants, sizes and attributes; see `mutations_nodes`."""

from __future__ import annotations

import numpy as np
from onnx import AttributeProto, NodeProto, helper

from ....runtime.ir.types import Array
from .mutation import COUNTING, Change, Mutation, resized

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


# ── constants ────────────────────────────────────────────────────────────────────────────────────


def _own_constant(m: Mutation, *, floats: bool | None = None) -> tuple[NodeProto, int, Array]:
    at, place = m.constant_edge(floats=floats)
    return m.nodes[at], place, m.constants[m.nodes[at].input[place]]


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


def constant_given(m: Mutation) -> None:
    """A constant is an input of the model."""
    node, place, data = _own_constant(m)
    name = m.fresh("given")
    m.feeds[name] = data
    node.input[place] = name


def given_constant(m: Mutation) -> None:
    """An input of the model is a constant, for one of its readers or for all."""
    if len(m.feeds) < 2:
        raise IndexError
    name = m.dice.choice(list(m.feeds))
    m.replace(name, m.constant(m.feeds[name]), m.dice.choice((1.0, 0.5)))


def constant_shared(m: Mutation) -> None:
    """A constant is the same as another one of its shape."""
    node, place, data = _own_constant(m)
    name = node.input[place]
    same = [
        n for n, x in m.constants.items() if (x.shape, x.dtype) == (data.shape, data.dtype) != name
    ]
    node.input[place] = m.dice.choice([n for n in same if n != name])


def constant_dtype(m: Mutation) -> None:
    """Indices are int32."""
    node, place, data = _own_constant(m, floats=False)
    if data.dtype != np.int64:
        raise IndexError
    node.input[place] = m.constant(data, np.int32)


# ── sizes ────────────────────────────────────────────────────────────────────────────────────────


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


def input_axis(m: Mutation) -> None:
    """An axis of an input has another size: 1, to be broadcast, or 0, or any."""
    name = m.dice.choice(list(m.feeds))
    data = m.feeds[name]
    axis = 0 if m.dice.random() < 0.4 else m.dice.randrange(max(data.ndim, 1))
    after = m.dice.choice((1, 1, 0, *_SIZES))
    m.feeds[name] = np.take(data, np.arange(after) % data.shape[axis], axis)


def input_rank(m: Mutation) -> None:
    """An input has one axis more, in front, or one fewer."""
    name = m.dice.choice(list(m.feeds))
    data = m.feeds[name]
    if data.ndim and m.dice.random() < 0.4:
        m.feeds[name] = np.take(data, 0, 0)
    else:
        m.feeds[name] = np.stack([data] * m.dice.choice((1, 1, 2)))


# ── attributes ───────────────────────────────────────────────────────────────────────────────────


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


def perm(m: Mutation) -> None:
    """A Transpose permutes otherwise: two axes more or fewer change places."""
    node = m.nodes[m.node("Transpose")]
    (one,) = (a for a in node.attribute if a.name == "perm")
    i, j = m.dice.sample(range(len(one.ints)), 2)
    one.ints[i], one.ints[j] = one.ints[j], one.ints[i]


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


def opset(m: Mutation) -> None:
    """The file is of another opset."""
    (one,) = (each for each in m.model.opset_import if each.domain == "")
    one.version = m.dice.choice((13, 14, 16, 17, 18, 19, 20, 21, 22, 23, 24))


#: How often each is drawn.
VALUES: dict[Change, float] = {
    constant_axes: 2,
    constant_broadcast: 2,
    constant_values: 2,
    constant_numbers: 2,
    constant_given: 1,
    given_constant: 0.7,
    constant_shared: 1,
    constant_dtype: 0.7,
    size: 3,
    input_axis: 2,
    input_rank: 0.7,
    attribute: 4,
    perm: 1.5,
    keepdims: 1.5,
    opset: 0.4,
}
