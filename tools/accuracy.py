"""How exact a result is: its distance from the same model in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..api import Loadable, Operators, load
from .oracle import Oracle
from .verdict import flat


def exact_outputs(
    source: Loadable,
    feeds: Mapping[str, Any],
    operators: Operators | None = None,
    outputs: list[str] | None = None,
) -> dict[str, Any]:
    """Return what a model gives in float64.

    Args:
        source: a path, the file's bytes, or a `ModelProto`.
        feeds: a value for every input.
        operators: custom operators.
        outputs: names of the tensors wanted; the model's outputs where None.
    """
    with load(source, stop_at=0, operators=operators) as model:
        oracle = Oracle(model.imported)
    try:
        return oracle.run(dict(feeds), outputs)
    finally:
        oracle.close()


def distance(found: Mapping[str, Any], exact: Mapping[str, Any]) -> float:
    """Return the greatest relative L2 distance of an output from the exact one.

    An output that is zero everywhere gives the distance itself; texts count nothing.

    Returns:
        Infinity where a shape differs or an output is missing.
    """
    ours, right = flat(found), flat(exact)
    worst = 0.0
    for name, data in right.items():
        if data.dtype == object:
            continue
        if name not in ours or ours[name].shape != data.shape:
            return float("inf")
        norm = float(np.linalg.norm(data.ravel()))
        apart = float(np.linalg.norm(np.subtract(ours[name], data, dtype=np.float64).ravel()))
        worst = max(worst, apart / norm if norm else apart)
    return worst
