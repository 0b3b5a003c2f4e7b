"""Recognise the rotation of heads by their positions that exporters spell out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..dtypes import FLOATS
from ..ir import Graph, Node, Value
from ..ops.attention import RotaryEmbedding
from ..ops.elementwise import Add, Mul, Neg
from ..ops.movement import Concat, Slice
from ..types import Array
from .driver import Context
from .editing import dtype_of, shape_of
from .fusion import Found, Fusion, Outcome, Replacement, fuse
from .pattern import Apply, Var


def _constants(node: Node) -> bool:
    return all(v is not None and v.data is not None for v in node.inputs[1:])


def _joins_last(node: Node) -> bool:
    rank = len(shape_of(node.output) or ())
    return getattr(node.op, "axis", 0) in (-1, rank - 1) and len(node.inputs) == 2


_CONSTANT = Var("sin", lambda value: value.data is not None)
_OTHER = Apply(
    Concat,
    Apply(Neg, Apply(Slice, "x", name="second", where=_constants)),
    Apply(Slice, "x", name="first", where=_constants),
    where=_joins_last,
    name="other",
)
_ROTATED = Apply(
    Add, Apply(Mul, _OTHER, _CONSTANT), Apply(Mul, "x", Var("cos", lambda v: v.data is not None))
)


def _bounds(node: Node, rank: int, size: int) -> tuple[int, int] | None:
    """Return what a Slice of the last axis takes, in steps of 1; None for another one."""
    starts, ends, axes, steps = (*[v and v.data for v in node.inputs[1:]], None, None)[:4]
    if starts is None or ends is None or axes is None or axes.size != 1:
        return None
    if int(axes.reshape(-1)[0]) not in (-1, rank - 1):
        return None
    if steps is not None and int(steps.reshape(-1)[0]) != 1:
        return None
    first, last, step = slice(int(starts.reshape(-1)[0]), int(ends.reshape(-1)[0])).indices(size)
    return (first, last) if step == 1 else None


def _cache(value: Value, length: int, size: int) -> Array | None:
    """Return what a table has for each position and pair; None where it differs otherwise."""
    data = value.data
    if data is None or data.ndim > 4 or data.shape[-2:] != (length, size):
        return None
    if data.size != length * size:
        return None
    table = data.reshape(length, size)
    half = size // 2
    return table[:, :half] if np.array_equal(table[:, :half], table[:, half:]) else None


def _build(found: Found) -> Outcome:
    x, shape = found["x"], shape_of(found["x"])
    if shape is None or len(shape) != 4 or dtype_of(x) not in FLOATS:
        return None
    batch, _, length, size = shape
    if not isinstance(batch, int) or not isinstance(length, int) or not isinstance(size, int):
        return None
    half = size // 2
    cuts = [_bounds(found.match.made(name), 4, size) for name in ("first", "second")]
    if size % 2 or cuts != [(0, half), (half, size)]:
        return None
    caches = [_cache(found[name], length, half * 2) for name in ("cos", "sin")]
    if any(cache is None or cache.dtype != dtype_of(x) for cache in caches):
        return None
    add = found.builder(f"{found.top.name}.caches")
    if batch == 1:
        tables = [add.constant(cache[None], "cache") for cache in caches if cache is not None]
        return Replacement(RotaryEmbedding(), (x, *tables))
    tables = [add.constant(cache, "cache") for cache in caches if cache is not None]
    places = np.broadcast_to(np.arange(length, dtype=np.int64), (batch, length))
    return Replacement(RotaryEmbedding(), (x, *tables, add.constant(places.copy(), "positions")))


FUSIONS = (Fusion(_OTHER, _build, _ROTATED, 2),)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Put RotaryEmbedding in place of ``x * cos + concat(-x[half:], x[:half]) * sin``.

    The tables are constants of one batch and one head, whose halves are equal; x has four axes of
    known sizes. Two positions of a pair are in the two halves of a head.
    """
    return fuse(graph, context, FUSIONS)
