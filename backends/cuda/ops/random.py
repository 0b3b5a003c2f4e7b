"""Random numbers; they differ from run to run unless a seed is given."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ....runtime.ir.dtypes import FLOATS, DType, float32
from ....runtime.ir.types import Array
from ....runtime.ops.norm import Dropout
from ....runtime.ops.random import (
    Bernoulli,
    Multinomial,
    RandomNormal,
    RandomNormalLike,
    RandomUniform,
    RandomUniformLike,
    key_of,
)
from ..algorithms.registry import Answer, kernel, need_dtypes
from ..codegen.copies import copy_strided, fill
from ..codegen.elementwise import ANY
from ..recipe.launch import THREADS, Launch, each
from ..recipe.operands import Arguments, Packed, Tensor, ceil_div
from ..recipe.source import arithmetic

FILE = "elementwise/random.cu"
UNIFORM, NORMAL, BERNOULLI, DROPOUT = range(4)


def _key(seed: float | None) -> int:
    return 0 if seed is None else key_of(seed)


def _words(seed: int | None) -> Array:
    """Return the initial state of numpy's RandomState."""
    found: Any = np.random.RandomState(seed).get_state()
    return found[1]


def _types(x: DType, y: DType, ratio: DType = float32) -> tuple[tuple[str, DType], ...]:
    return (("X", x), ("T", y), ("R", ratio), ("A", arithmetic(x)))


def _generated(
    kind: int, y: Tensor, x: Tensor | None, seed: float | None, low: float, span: float
) -> Answer:
    return need_dtypes(ANY, y, x) or each(
        FILE,
        "generate",
        ceil_div(y.size, 2),
        {"x": x, "y": y, "count": y.size, "seed": _key(seed), "low": low, "range": span},
        types=_types(y.dtype if x is None else x.dtype, y.dtype),
        constants=(("KIND", kind), ("SEEDED", seed is not None)),
    )


@kernel(RandomUniform, RandomUniformLike)
def random_uniform(
    op: RandomUniform | RandomUniformLike, y: Tensor, like: Tensor | None = None
) -> Answer:
    """Uniform distribution over [low, high)."""
    return _generated(UNIFORM, y, None, op.seed, op.low, op.high - op.low)


@kernel(RandomNormal, RandomNormalLike)
def random_normal(
    op: RandomNormal | RandomNormalLike, y: Tensor, like: Tensor | None = None
) -> Answer:
    """Normal distribution."""
    return _generated(NORMAL, y, None, op.seed, op.mean, op.scale)


@kernel(Bernoulli)
def bernoulli(op: Bernoulli, y: Tensor, x: Tensor) -> Answer:
    """Ones with the given probabilities."""
    return _generated(BERNOULLI, y, x, op.seed, 0.0, 1.0)


@kernel(Dropout, outputs=2)
def dropout(
    op: Dropout,
    y: Tensor | None,
    x: Tensor,
    ratio: Tensor | None = None,
    training: Tensor | None = None,
    *,
    more: tuple[Tensor | None, ...] = (),
) -> Answer:
    """Drop elements in training; copy otherwise."""
    mask = more[0] if more else None
    if training is None or (training.known is not None and not training.known.any()):
        launches: list[Launch] = [] if y is None else [copy_strided(y, x, x.strides)]
        return (*launches, *([] if mask is None else [fill(mask, np.ones((), bool))]))
    if refused := need_dtypes(FLOATS, x, ratio):
        return refused
    args: Arguments = {"x": x, "ratio": ratio, "training": training, "y": y, "mask": mask}
    types = _types(x.dtype, x.dtype, float32 if ratio is None else ratio.dtype)
    constants = (("KIND", DROPOUT), ("SEEDED", False))
    if op.seed is None:
        given: Arguments = {**args, "count": x.size, "seed": 0}
        half = ceil_div(x.size, 2)
        return each(FILE, "drop", half, given, types=types, constants=constants)
    seed = op.generator_seed
    state = Packed((), ("MT19937", seed), partial(_words, seed))
    return Launch(
        FILE,
        "drop_seeded",
        grid=(1, 1, 1),
        block=THREADS,
        args={**args, "state": state, "count": x.size},
        types=types,
        constants=constants,
    )


@kernel(Multinomial)
def multinomial(op: Multinomial, y: Tensor, x: Tensor) -> Answer:
    """Classes drawn by their log-probabilities."""
    rows, classes = x.dims
    if not classes:
        return "no classes to draw from"
    return need_dtypes(FLOATS, x) or Launch(
        FILE,
        "choose",
        grid=(rows, 1, 1),
        block=THREADS,
        args={
            **{"x": x, "y": y, "classes": classes, "samples": op.sample_size},
            "seed": _key(op.seed),
        },
        types=_types(x.dtype, y.dtype),
        constants=(("KIND", UNIFORM), ("SEEDED", op.seed is not None)),
    )
