"""Fuses GroupNormalization written as a reshaped InstanceNormalization."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...ir.graph import Graph, Value
from ...ir.types import Array
from ...ops.elementwise import Add, Mul
from ...ops.norm import GroupNormalization, InstanceNormalization
from ...ops.shape import Reshape
from ..driver import Context
from ..editing import Builder, dtype_of, shape_of
from ..fusion import Found, Fusion, Outcome, Replacement, fuse
from ..pattern import Apply, Var, perhaps
from ..rounding import rounded_bias


def _constant(name: str) -> Var:
    return Var(name, lambda value: value.data is not None)


_NORM = Apply(
    InstanceNormalization,
    Apply(Reshape, "x", name="groups"),
    _constant("inner scale"),
    _constant("inner shift"),
    name="norm",
)
_WHOLE = perhaps(Add, perhaps(Mul, Apply(Reshape, "norm"), _constant("scale")), _constant("shift"))


def _build(found: Found) -> Outcome:
    x, op = found["x"], found.match.made("norm").op
    shape, groups = shape_of(found.top.output), shape_of(found["groups"])
    if not isinstance(op, InstanceNormalization) or not shape or not groups or len(shape) < 2:
        return None
    channels, number = shape[1], groups[1]
    if shape[0] is None or shape[0] != groups[0]:
        return None
    is_same = shape_of(x) == shape
    if not is_same and not all(isinstance(size, int) for size in shape):
        return None
    if not isinstance(channels, int) or not isinstance(number, int) or channels % number:
        return None
    rank, repeats = len(shape), channels // number
    scale, shift = (
        np.repeat(_row(found[name], 1), repeats) for name in ("inner scale", "inner shift")
    )
    for name in ("scale", "shift"):
        outer = found.match.get(name)
        if outer is None:
            continue
        row = _row(outer, rank)
        if row.size not in (1, channels) or _axes(outer, rank) - {1}:
            return None
        scale, shift = (scale * row, shift * row) if name == "scale" else (scale, shift + row)
    dtype = dtype_of(x)
    if dtype is None:
        return None
    if not is_same:  # heads that are merged to channels
        x = Builder(found.graph, found.top, found.top.name).view(x, shape)
    constants = (
        found.graph.constant(rounded_bias(each, dtype), f"{found.top.name}.{name}")
        for each, name in ((scale, "scale"), (shift, "shift"))
    )
    return Replacement(GroupNormalization(epsilon=op.epsilon, num_groups=number), (x, *constants))


def _row(value: Value, rank: int) -> Array:
    """Return the elements of a constant (float64)."""
    data = value.data
    return np.zeros(0) if data is None or data.ndim > rank else data.astype(np.float64).reshape(-1)


def _axes(value: Value, rank: int) -> set[int]:
    """Return the axes along which a constant varies, for a tensor of this rank."""
    dims = value.tensor.dims
    return {rank - len(dims) + axis for axis, size in enumerate(dims) if size != 1}


FUSIONS = (Fusion(_NORM, _build, _WHOLE, reach=3),)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace ``reshape(instance_norm(reshape(x, [n, groups, -1]))) * s + t`` by one node.

    Exporters write group norms so for older opsets. The per-channel scale and shift that follow
    become those of the GroupNormalization, multiplied by the per-group ones of the
    InstanceNormalization.
    """
    return fuse(graph, context, FUSIONS)
