"""How exact a result is: its distance from the same model in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...api import Loadable, load
from ...runtime.ir.types import Array
from ..common.nested import flat
from .float64_reference import Oracle


def exact_outputs(
    source: Loadable,
    feeds: Mapping[str, Any],
    outputs: list[str] | None = None,
) -> dict[str, Any]:
    """Return what a model gives in float64.

    Args:
        source: a path, bytes, or a `ModelProto`.
        feeds: a value for every input.
        outputs: names of the tensors wanted; the model's outputs if None.
    """
    with load(source, stop_at=0) as model:
        oracle = Oracle(model.imported)
    try:
        return oracle.run(dict(feeds), outputs)
    finally:
        oracle.close()


def distance(found: Mapping[str, Any], exact: Mapping[str, Any]) -> float:
    """Return the maximum relative L2 distance of an output from the exact one.

    An output that is zero everywhere gives the distance itself. NaN and infinities count nothing
    where both have the same ones.

    Returns:
        Infinity where a shape differs, an output is missing, texts differ, or NaN or an infinity
        is where the other one has something else.
    """
    ours, right = flat(found), flat(exact)
    worst = 0.0
    for name, data in right.items():
        if name not in ours or ours[name].shape != data.shape:
            return float("inf")
        worst = max(worst, distance_of(ours[name], data))
    return worst


def distance_of(found: Array, exact: Array) -> float:
    """Return the relative L2 distance of two arrays of one shape; see `distance`."""
    if exact.dtype == object or found.dtype == object:
        return 0.0 if np.array_equal(found, exact) else float("inf")
    same = (found == exact) | ((found != found) & (exact != exact))
    finite = np.isfinite(found) & np.isfinite(exact)
    if not (same | finite).all():
        return float("inf")
    wide = np.result_type(found, exact, np.float64)
    norm = float(np.linalg.norm(np.where(finite, exact, 0).astype(wide).ravel()))
    away = np.subtract(
        found, exact, dtype=wide, where=finite & ~same, out=np.zeros_like(exact, wide)
    )
    apart = float(np.linalg.norm(away.ravel()))
    return apart / norm if norm else apart
