"""Other weights for the same graph: constants replaced by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..base.arguments import unfit
from ..base.scoped import Scoped
from ..errors import InputError, did_you_mean
from ..ir.dtypes import bool_, int64, string
from ..ir.graph import Graph
from ..ir.infer import specialise
from ..ir.types import Array, TensorType
from .io_types import as_array

#: Other weights of every model loaded within a block, by name of a constant.
WEIGHTS = Scoped[str, Any]("weights")
#: Types of shapes, axes, indices and counters, which are no weights.
NO_WEIGHTS = (int64, bool_, string)
#: How many names an error lists.
SHOWN = 5


def only_weights(arrays: Mapping[str, Any]) -> dict[str, Array]:
    """Return the arrays that may be weights, by their dtype."""
    found = {name: as_array(data) for name, data in arrays.items()}
    return {name: data for name, data in found.items() if data.dtype not in NO_WEIGHTS}


def weights_of(graph: Graph) -> dict[str, Array]:
    """Return the weights of a graph by name: its constants except shapes, axes and the like."""
    return only_weights({v.name: v.data for v in graph.constants if v.data is not None})


def refit(graph: Graph, arrays: Mapping[str, Any]) -> Graph:
    """Return a copy of a graph with other weights.

    Every array must have its place, because a checkpoint of which some arrays are ignored gives
    wrong results: exporters rename weights that they transpose, and fold others. Weights that get
    no array stay as they are.

    Args:
        graph: as imported; not modified.
        arrays: the elements, by name of a constant; those of types in `NO_WEIGHTS` are ignored.

    Raises:
        InputError: the graph has no such weight, or one of another dtype or shape.
    """
    copy = graph.clone()
    known = weights_of(copy)
    given = only_weights(arrays)
    if missing := [name for name in given if name not in known]:
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        reason = (
            f"{len(missing)} of {len(given)} arrays are not weights of the model: "
            f"{', '.join(missing[:SHOWN])}{more}{did_you_mean(missing[0], known)} "
            "(an exporter that transposes or folds weights renames them)"
        )
        raise unfit(InputError, "weights", reason)
    for name, data in given.items():
        value, is_fit = copy.values[name], known[name].dtype == data.dtype
        if not is_fit or known[name].shape != data.shape:
            type_ = TensorType(data.dtype, data.shape)
            reason = f"'{name}' is {type_}; the model's is {value.type}"
            raise unfit(InputError, "weights", reason)
        value.fix(np.ascontiguousarray(data).reshape(data.shape))
    fresh = specialise(copy, {value.name: value.type for value in copy.inputs})
    fresh.general = None
    return fresh
