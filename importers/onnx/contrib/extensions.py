"""Operators of onnxruntime-extensions that ONNX's own can express.

Its documentation (`docs/custom_ops.md`) and its library define them. tf2onnx writes those on
strings, with ``--extra_opset ai.onnx.contrib:1``. StringUpper changes ASCII letters only, which no
operator of ONNX does; tokenizers and codecs have no such rule, either.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ....runtime.ir import dtypes
from ....runtime.ir.types import Array
from .builder import NodeBuilder
from .catalogue import EXTENSIONS
from .declaration import Int64, Kind, T, contrib

Text = Annotated[str, Kind("S", frozenset({dtypes.string}))]
Bool = Annotated[str, Kind("B", frozenset({dtypes.bool_}))]


@contrib("StringLower", domain=EXTENSIONS)
def string_lower(b: NodeBuilder, x: Text) -> str:
    """Strings in lower case."""
    row = b.StringNormalizer(b.Reshape(x, b.ints(-1)), case_change_action="LOWER")
    return b.reshape_like(row, x)


@contrib("StringConcat", domain=EXTENSIONS)
def string_concat(b: NodeBuilder, x: Text, y: Text) -> str:
    """Strings with others after them."""
    return b.StringConcat(x, y)


@contrib("StringEqual", domain=EXTENSIONS)
def string_equal(b: NodeBuilder, x: Text, y: Text) -> str:
    """Whether strings are equal, as bool."""
    return b.Equal(x, y)


@contrib("StringJoin", domain=EXTENSIONS)
def string_join(b: NodeBuilder, x: Text, separator: Text, axis: Int64) -> str:
    """The strings along an axis with a separator between them; the axis is dropped."""
    (at,) = _known(b, axis, "axis").ravel()
    count = b.need_extent(x, int(at))
    if not count:
        raise b.unsupported("there is nothing to join", "give it an axis with elements")
    between = b.Reshape(separator, b.constant(np.empty(0, np.int64)))
    parts = [b.Gather(x, b.constant(np.array(i)), axis=int(at)) for i in range(count)]
    joined = parts[0]
    for part in parts[1:]:
        joined = b.StringConcat(b.StringConcat(joined, between), part)
    return joined


@contrib("StringSplit", outputs=(3, 3), domain=EXTENSIONS)
def string_split(
    b: NodeBuilder, x: Text, separator: Text, skip_empty: Bool
) -> tuple[str, str, str]:
    """Parts of [n] strings as a sparse matrix: places [k, 2], parts [k] and its shape [2].

    An empty string has no parts.
    """
    b.rank(x, 1)
    (found,) = _known(b, separator, "separator").ravel()
    if len(str(found)) != 1:
        raise b.unsupported(
            f"separator '{found}' is not one character", "replace the others by it before"
        )
    parts, counts = b.several("StringSplit", 2, x, delimiter=str(found))
    last = b.size(parts, 1)
    places = b.Range(b.constant(np.array(0)), b.Squeeze(last), b.constant(np.array(1)))
    empty = b.constant(np.array("", dtypes.string))
    kept = b.Less(places, b.Unsqueeze(counts, b.ints(1)))
    kept = b.And(kept, b.Not(b.Unsqueeze(b.Equal(x, empty), b.ints(1))))
    if _known(b, skip_empty, "skip_empty").any():
        kept = b.And(kept, b.Not(b.Equal(parts, empty)))
    order = b.CumSum(b.cast(kept, dtypes.int64), b.constant(np.array(1)))
    where = b.Transpose(b.NonZero(kept), perm=(1, 0))
    column = b.Sub(b.GatherND(order, where), b.ints(1))
    row = b.slice(where, 1, 0, 1)
    widest = b.ReduceMax(b.Concat(b.ints(0), b.Reshape(order, b.ints(-1)), axis=0), keepdims=1)
    return (
        b.Concat(row, b.Unsqueeze(column, b.ints(1)), axis=1),
        b.GatherND(parts, where),
        b.Concat(b.size(x, 0), widest, axis=0),
    )


@contrib("MaskedFill", domain=EXTENSIONS)
def masked_fill(b: NodeBuilder, x: Text, mask: Bool) -> str:
    """The strings at which a mask of their shape is true, as a row."""
    return b.Compress(x, b.Reshape(mask, b.ints(-1)))


@contrib("NegPos", outputs=(2, 2), domain=EXTENSIONS)
def neg_pos(b: NodeBuilder, x: T) -> tuple[str, str]:
    """Negative elements, and positive ones; zeros elsewhere."""
    return b.Min(x, b.number(0, x)), b.Relu(x)


@contrib("Inverse", domain=EXTENSIONS)
def inverse(b: NodeBuilder, x: T) -> str:
    """The inverse of a matrix."""
    return b.own("Inverse", x)


@contrib("SegmentSum", domain=EXTENSIONS)
def segment_sum(b: NodeBuilder, x: T, segments: Int64) -> str:
    """Sums of rows of equal, ascending segments; there are as many as the last one says."""
    count = b.Add(b.slice(segments, 0, -1, np.iinfo(np.int64).max), b.ints(1))
    zeros = b.Expand(b.number(0, x), b.Concat(count, b.Shape(x, start=1), axis=0))
    return b.ScatterND(zeros, b.Unsqueeze(segments, b.ints(-1)), x, reduction="add")


def _known(b: NodeBuilder, x: str, name: str) -> Array:
    """Return an input that must be a constant."""
    found = b.value(x)
    if found is None:
        raise b.unsupported(f"{name} is computed", "export the model with it as a constant")
    return found
