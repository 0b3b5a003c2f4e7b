"""Operators of ai.onnx.ml that look elements up in a table."""

from __future__ import annotations

from functools import partial
from itertools import repeat
from typing import Any

import numpy as np

from ....runtime.ir.dtypes import DType, float32, int64, string
from ....runtime.ir.prepared import prepared
from ....runtime.ir.types import Array
from ....runtime.ops.ml import CategoryMapper, LabelEncoder, OneHotEncoder
from ....runtime.options import Options
from ....runtime.plan.backend import BuildContext
from ..engine.apply import left_to_kernel
from ..engine.chain import Chain
from ..engine.registry import builder, kernel
from ..engine.step import Bound, HostStep, ScratchLayout, Tape

#: Maximum range of integer keys per key, and that of any few, for an array of all values in it.
SPARSE, FEWEST = 16, 1 << 12
#: Maximum elements of a table of results.
LARGEST = 1 << 16


class Table:
    """Values by key, the last of equal keys; NaN equals NaN.

    Args:
        keys: numbers or strings.
        values: one for each key, of the dtype of results.
        default: the value of other elements.
    """

    def __init__(self, keys: Array, values: Array, default: Any) -> None:
        self._values, self._default = values, np.asarray(default).astype(values.dtype)
        self._low, self._dense = 0, None
        self._of_nan: Array | None = None
        if keys.dtype.kind == "f" and (found := np.flatnonzero(np.isnan(keys))).size:
            self._of_nan = values[found[-1]]
        elif keys.dtype.kind == "i" and len(keys):
            self._low, high = int(keys.min()), int(keys.max())
            if high - self._low < max(FEWEST, SPARSE * len(keys)):
                size = high - self._low + 1
                self._dense = np.full(size + 1, self._default, values.dtype)
                self._dense[keys.astype(int64) - self._low] = values
        self._table = dict(zip(keys.tolist(), values.tolist(), strict=True))

    @property
    def is_dense(self) -> bool:
        """Whether there is an array of all values."""
        return self._dense is not None

    def recorded(self, x: Array, out: Array, places: Array) -> Tape:
        """Return the calls that look up in the array of all values.

        Args:
            x: integers.
            out: of the same shape.
            places: int64, of the same shape, which they overwrite.
        """
        assert self._dense is not None
        unsigned, outside = places.view(np.uint64), np.uint64(len(self._dense) - 1)
        return [
            partial(np.subtract, x, self._low, places, dtype=int64, casting="unsafe"),
            partial(np.minimum, unsigned, outside, out=unsigned),
            partial(self._dense.take, places, out=out, mode="clip"),
        ]

    def look_up(self, x: Array, out: Array) -> None:
        """Write the value of every element to `out`, of the same shape."""
        if self.is_dense:
            for call in self.recorded(x, out, np.empty(x.shape, int64)):
                call()
            return
        default: Any = self._default.item()
        found = map(self._table.get, x.reshape(-1).tolist(), repeat(default))
        np.copyto(out, np.fromiter(found, out.dtype, x.size).reshape(x.shape))
        if self._of_nan is not None:
            np.copyto(out, self._of_nan, where=np.isnan(x))


@prepared
def _table_of(op: LabelEncoder | CategoryMapper, dtype: DType) -> Table:
    if isinstance(op, LabelEncoder):
        return Table(*op.pairs, op.default)
    strings, ints = np.array(op.cats_strings or (), string), np.array(op.cats_int64s or (), int64)
    if dtype == string:
        return Table(strings, ints, op.default_int64)
    return Table(ints, strings, np.array(op.default_string, string))


@kernel(LabelEncoder, CategoryMapper)
def look_up(op: LabelEncoder | CategoryMapper, x: Array, *, out: Array) -> None:
    """Replace every element by the value of the key equal to it."""
    _table_of(op, x.dtype).look_up(x, out)


@builder(LabelEncoder, CategoryMapper)
def recorded_table(chain: Chain, site: BuildContext, options: Options) -> HostStep:
    """Look integers up in a few calls that are recorded once."""
    node, op, x = chain.head, chain.head.op, chain.head.inputs[0]
    assert isinstance(op, LabelEncoder | CategoryMapper)
    assert x is not None
    table = _table_of(op, x.tensor.dtype)
    if not table.is_dense:
        return left_to_kernel(chain, site)
    scratch = ScratchLayout()
    piece = scratch.take(x.tensor.size, int64)

    def record(bound: Bound) -> list[Tape]:
        data, out = bound[x], bound[node.output]
        return [table.recorded(data, out, bound.scratch(piece, data.shape))]

    return HostStep(node.kind, site, record, own=scratch.nbytes)


@kernel(OneHotEncoder)
def one_hot_encoder(op: OneHotEncoder, x: Array) -> Array:
    """Write 1 at the category of each element, the last of equal ones."""
    x = x if op.cats_strings else x.astype(int64)
    found = np.empty(x.shape, int64)
    _categories(op).look_up(x, found)
    if not op.zeros and (found < 0).any():
        unknown = x[found < 0].reshape(-1)[0]
        raise ValueError(f"{unknown!r} is not one of the categories")
    rows = _rows(op)
    if rows is not None:
        return rows.take(found, 0)
    count = len(op.cats_strings or op.cats_int64s or ())
    return (found[..., np.newaxis] == np.arange(count)).astype(float32)


@prepared
def _rows(op: OneHotEncoder) -> Array | None:
    """Return the results by category, and last that of others; None if they are too many."""
    count = len(op.cats_strings or op.cats_int64s or ())
    return np.eye(count + 1, count, dtype=float32) if count * count <= LARGEST else None


@prepared
def _categories(op: OneHotEncoder) -> Table:
    """Return the place of each category, -1 for others."""
    strings, ints = op.cats_strings, op.cats_int64s
    keys = np.array(strings, string) if strings else np.array(ints, int64)
    return Table(keys, np.arange(len(keys)), -1)
