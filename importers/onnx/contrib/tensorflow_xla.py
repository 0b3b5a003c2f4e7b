"""TensorFlow's operators of XLA that tf2onnx leaves as they are: Keras' ``ops.slice_update``."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .declaration import Anything, Index, Kind
from .tensorflow_names import operator

#: Any dtype, the same for all such inputs.
Same = Annotated[str, Kind("S", frozenset(dtypes.TO_ONNX))]
#: Ranks of tensors; TensorFlow has no others.
_RANKS = range(9)


@operator("XlaDynamicUpdateSlice")
def dynamic_update_slice(b: NodeBuilder, x: Same, update: Same, starts: Index) -> str:
    """Return x with a block replaced, which is moved inside where it would extend beyond."""
    rank, inside, found = b.rank(x, *_RANKS), "", update
    for axis in range(rank):
        size = b.dim(x, axis)
        if size is not None and size == b.dim(update, axis):
            continue  # where the block is does not matter
        whole, count = b.size(x, axis), b.size(update, axis)
        places = b.Sub(_counted(b, whole), _start(b, starts, axis, whole, count))
        last = b.Sub(count, b.ints(1))
        here = b.And(b.GreaterOrEqual(places, b.ints(0)), b.LessOrEqual(places, last))
        here = b.Unsqueeze(here, b.ints(*range(1, rank - axis)))
        inside = b.And(inside, here) if inside else here
        found = b.Gather(found, b.Min(b.Max(places, b.ints(0)), last), axis=axis)
    return b.Where(inside, found, x) if inside else b.Identity(update)


@operator("XlaDynamicSlice")
def dynamic_slice(b: NodeBuilder, x: Anything, starts: Index, sizes: Index) -> str:
    """Return a block of x, which is moved inside where it would extend beyond."""
    found = x
    for axis in range(b.rank(x, *_RANKS)):
        count = b.slice(b.cast(sizes, dtypes.int64), 0, axis, axis + 1)
        start = _start(b, starts, axis, b.size(x, axis), count)
        found = b.Gather(found, b.Add(_counted(b, count), start), axis=axis)
    return b.Identity(x) if found == x else found


def _start(b: NodeBuilder, starts: str, axis: int, whole: str, count: str) -> str:
    """Return where a block of `count` of all `whole` elements along an axis starts."""
    asked = b.slice(b.cast(starts, dtypes.int64), 0, axis, axis + 1)
    return b.Max(b.Min(asked, b.Sub(whole, count)), b.ints(0))


def _counted(b: NodeBuilder, count: str) -> str:
    first, step = (b.constant(np.array(each)) for each in (0, 1))
    return b.Range(first, b.Squeeze(count), step)
