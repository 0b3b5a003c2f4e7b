"""Inputs of benchmarks: given, or generated for a batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...runtime.errors import UsageError
from ...runtime.session.model import TensorInfo
from ..common.inputs import Asked, InputRequest, Inputs, given_inputs, make_inputs


def batch_of(feeds: Inputs) -> int:
    """Return the size of the first axis of the first input that has one."""
    shapes = (np.shape(data) for data in feeds.arrays.values())
    return next((int(shape[0]) for shape in shapes if shape), 1)


def feeds_of(
    infos: Sequence[TensorInfo],
    inputs: Asked,
    batch: int | None,
) -> Inputs:
    """Return the inputs of a model for a batch size.

    Args:
        infos: the model's inputs.
        inputs: the request.
        batch: the size; None for that of the model and `inputs`.

    Raises:
        UsageError: the model or the given inputs have another size.
    """
    if not isinstance(inputs, InputRequest):
        feeds = given_inputs(infos, inputs)
    elif batch is None:
        return make_inputs(infos, inputs)
    else:
        feeds = make_inputs(infos, replace(inputs, dims=_batch_dims(infos, inputs, batch)))
    if batch is not None and batch_of(feeds) != batch:
        name = next(iter(feeds.arrays), "")
        raise UsageError(
            f"a batch of {batch} is asked for; input '{name}' has {batch_of(feeds)}, "
            "which the model or what was given for it decides"
        )
    return feeds


def _batch_dims(infos: Sequence[TensorInfo], inputs: InputRequest, batch: int) -> tuple[str, ...]:
    """Return the sizes of symbols, with that of the first input's first axis added."""
    first = next((info.shape[0] for info in infos if info.shape), None)
    return (*inputs.dims, *((f"{first}={batch}",) if isinstance(first, str) else ()))
