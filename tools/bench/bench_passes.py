"""Benchmarks without single graph passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...backends.numpy import evaluate
from ...runtime.ir.infer import specialise
from ...runtime.ir.types import TensorType
from ...runtime.passes import STATIC_PASSES, optimise
from ...runtime.session.model import Model
from ..common.inputs import Inputs
from .bench_cases import ALL_PASSES


def rewriting_passes(model: Model, feeds: Inputs) -> list[str]:
    """Return the graph passes that rewrite a model for these input shapes, in order."""
    log = model.rewrites.copy()
    types = {
        name: TensorType(array.dtype, array.shape)
        for name, array in feeds.arrays.items()
        if isinstance(array, np.ndarray)
    }
    if len(types) == len(model.inputs):
        optimise(specialise(model.graph, types), STATIC_PASSES, model.options, evaluate, log)
    return list(log.counts)


def without_pass(options: Mapping[str, Any], left_out: str) -> dict[str, Any]:
    """Return options with a graph pass left out, or `ALL_PASSES`."""
    if left_out == ALL_PASSES:
        return {**options, "stop_at": 0}
    return {**options, "skip": (*options.get("skip", ()), left_out)}
