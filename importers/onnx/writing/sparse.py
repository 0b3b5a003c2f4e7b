"""Constants that are mostly zeros, as sparse initializers of a file."""

from __future__ import annotations

import numpy as np
from onnx import SparseTensorProto, TensorProto

from ....runtime.ir import dtypes
from ....runtime.ir.dtypes import bits_of
from ....runtime.ir.types import Array
from .encode import Store, embedded

#: The IR version that introduced them.
FORMAT = 6


def smaller(store: Store) -> Store:
    """Return a store that makes sparse messages of the constants that these are smaller for.

    Args:
        store: makes the messages of the others.
    """

    def chosen(name: str, data: Array) -> TensorProto | SparseTensorProto:
        return sparse_form(name, data) or store(name, data)

    return chosen


def sparse_form(name: str, data: Array) -> SparseTensorProto | None:
    """Return a constant as its elements that are not zero, with their places in C order.

    A negative zero is such an element, so that reading gives the same bits. None if this takes no
    fewer bytes than all elements, and for what a sparse tensor cannot hold: scalars, strings, and
    elements of less than a byte.
    """
    if not data.ndim or not data.size or data.dtype == dtypes.string or bits_of(data.dtype) < 8:
        return None
    flat = np.ascontiguousarray(data).reshape(-1)
    codes = flat.view(np.uint8).reshape(flat.size, -1)
    places = np.flatnonzero(codes.any(axis=1))
    if not places.size:  # onnx's checker wants one
        places = np.zeros(1, np.int64)
    if places.size * (data.itemsize + places.itemsize) >= data.nbytes:
        return None
    values, indices = embedded(name, flat[places]), embedded("", places.astype(np.int64))
    return SparseTensorProto(values=values, indices=indices, dims=data.shape)
