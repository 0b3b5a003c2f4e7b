"""Freezing of inputs: inputs become constants, which passes can fold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..base.scoped import Scoped
from ..errors import InputError, did_you_mean
from ..ir.graph import Graph
from ..ir.infer import specialise
from ..ir.symbols import ambiguous, loosened, sizes_of
from ..ir.types import Dim, TensorType, ValueType
from .io_types import TensorInfo, check_value

#: Arrays for inputs of every model loaded within a block, by input name.
FROZEN = Scoped[str, Any]("frozen inputs")


def freeze_inputs(graph: Graph, arrays: Mapping[str, Any]) -> Graph:
    """Return a copy of a graph with some inputs replaced by constants.

    Symbolic dimensions found in their shapes are bound everywhere.

    Args:
        graph: as imported; not modified.
        arrays: the elements, by input name.

    Raises:
        InputError: there is no such input, or the array does not fit its type.
    """
    copy = graph.clone()
    by_name = {value.name: value for value in copy.inputs}
    found: dict[str, ValueType | None] = {}
    for name, data in arrays.items():
        if name not in by_name:
            hint = did_you_mean(name, by_name)
            raise InputError(f"the model has no input '{name}' to freeze{hint}")
        array = check_value(TensorInfo.of(by_name[name]), data)
        if not isinstance(array, np.ndarray):
            raise InputError(f"input '{name}' is not a tensor; only tensors can be frozen")
        copy.freeze(by_name[name], array)
        found[name] = by_name[name].type
    sizes_by_symbol = sizes_of(graph.inputs, found)
    sizes = {symbol: next(iter(each)) for symbol, each in sizes_by_symbol.items() if len(each) == 1}
    if unclear := ambiguous(sizes_by_symbol):
        copy = loosened(copy, frozenset(unclear))
    types = {value.name: _bound(value.type, sizes) for value in copy.inputs}
    frozen = specialise(copy, types)
    frozen.general = None
    return frozen


def _bound(type_: ValueType | None, sizes: Mapping[str, Dim]) -> ValueType | None:
    if not isinstance(type_, TensorType) or type_.shape is None:
        return type_
    dims = (sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in type_.shape)
    return type_.with_shape(tuple(dims))
