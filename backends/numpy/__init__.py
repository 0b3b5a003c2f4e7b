"""The reference backend: numpy, on the host."""

from __future__ import annotations

from ...runtime.options import Options
from ...runtime.plan.backend import Backend
from .backend import NumpyBackend, evaluate
from .ops import (
    attention,
    attention_rows,
    boxes,
    contrib_distance,
    contrib_linalg,
    contrib_text,
    conv,
    conv_transpose,
    conv_variants,
    experts,
    gather,
    image,
    loss,
    matmul,
    ml,
    ml_linear,
    ml_maps,
    ml_trees,
    movement,
    norm,
    norm_rows,
    packed,
    pool,
    quantize,
    random,
    recurrent,
    reduce,
    resize,
    search,
    sequence,
    shape,
    signal,
    text,
    training,
)

#: Importing these modules registers their implementations.
FAMILIES = (
    attention,
    attention_rows,
    boxes,
    contrib_distance,
    contrib_linalg,
    contrib_text,
    conv,
    conv_transpose,
    conv_variants,
    experts,
    gather,
    image,
    loss,
    matmul,
    ml,
    ml_linear,
    ml_maps,
    ml_trees,
    movement,
    norm,
    norm_rows,
    packed,
    pool,
    quantize,
    random,
    recurrent,
    reduce,
    resize,
    search,
    sequence,
    shape,
    signal,
    text,
    training,
)

#: ``direct`` excludes Winograd, whose rounding error is a few times larger.
ALGORITHMS = ("direct",)

__all__ = ["NumpyBackend", "evaluate", "open_backends"]


def open_backends(options: Options) -> tuple[Backend, ...]:
    """Return the backend, which is always available."""
    return (NumpyBackend(),)
