"""What graphs with rotations are made of."""

from __future__ import annotations

import numpy as np

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ops.movement import Concat, Slice
from tercet.runtime.ops.shape import Unsqueeze
from tercet.runtime.options import Options

from .graphs import apply

#: No pass changes anything.
RAW = Options(stop_at=0)


def tables(length: int, pairs: int) -> tuple[np.ndarray, np.ndarray]:
    angles = np.random.default_rng(0).standard_normal((1, 1, length, pairs))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def cut(g: Graph, x: Value, axis: int, first: int, last: int, step: int = 1) -> Value:
    part = apply(g, Slice(), x, *(np.array([n]) for n in (first, last, axis, step)))
    infer(g)
    return part


def stacked(g: Graph, first: Value, second: Value, axis: int = -1) -> Value:
    return apply(
        g, Concat(axis=axis), *(apply(g, Unsqueeze(), v, np.array([axis])) for v in (first, second))
    )
