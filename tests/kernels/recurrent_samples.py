"""Recurrent layers of sizes for which each of their kernels is the fastest on an H200."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ops.movement import Transpose
from tercet.runtime.ops.recurrent import GRU, LSTM
from tercet.runtime.ops.shape import Reshape

from .dry import Net, normal
from .samples import Sample, sample, sample_of_graph

GATES = {"LSTM": 4, "GRU": 3}
BOTH = "bidirectional"


def recurrent(
    operator: str,
    sizes: tuple[int, int, int, int],
    dtype: DType = float32,
    directions: int = 1,
    lengths: bool = False,
    scale: float = 1,
    start: float = 0,
) -> Sample:
    """Return a layer whose weights are constants.

    Args:
        operator: LSTM or GRU.
        sizes: steps, sequences, inputs, units.
        dtype: of all.
        directions: 1 or 2.
        lengths: whether sequences have different ones.
        scale: of inputs, without a bias, unless it is 1.
        start: size of initial states, which are constants; none if 0.
    """
    time, batch, size, hidden = sizes
    width = GATES[operator] * hidden
    inputs: list[Any] = [
        normal(time, batch, size, dtype=dtype, scale=scale),
        normal(directions, width, size, dtype=dtype, scale=size**-0.5),
        normal(directions, width, hidden, dtype=dtype, scale=hidden**-0.5),
        normal(directions, 2 * width, dtype=dtype, scale=0.1) if scale == 1 else None,
        np.arange(batch, dtype=np.int32) % (time + 1) if lengths else None,
        normal(directions, batch, hidden, dtype=dtype, scale=start) if start else None,
    ]
    more: dict[str, Any] = {"linear_before_reset": 1} if operator == "GRU" else {}
    found = sample(
        operator,
        inputs,
        (1, 2, 3, 5),
        outputs=3 if operator == "LSTM" else 2,
        direction="bidirectional" if directions == 2 else "forward",
        **more,
    )
    found.graph.name = f"{operator} {sizes} {dtype.name} {directions} {lengths} {scale} {start}"
    return found


def tiled() -> Iterator[Sample]:
    """Yield those of `recurrent_mma.cu`: blocks alone and in clusters, and states of any size."""
    for dtype in (float32, float16, bfloat16):
        yield recurrent("LSTM", (2, 500, 8, 21), dtype, 2, lengths=True)
        yield recurrent("GRU", (2, 1000, 12, 32), dtype)
    yield recurrent("LSTM", (1, 900, 8, 125), lengths=True)
    yield recurrent("GRU", (2, 900, 8, 125), float16)
    yield recurrent("LSTM", (2, 1000, 8, 24), scale=1e-20)
    yield recurrent("GRU", (2, 1000, 8, 24), start=30)


def multiplied() -> Iterator[Sample]:
    """Yield those of `recurrent_cells.cu`."""
    for dtype in (float16, bfloat16):
        yield recurrent("LSTM", (3, 5, 16, 1304), dtype, 2, lengths=True)
        yield recurrent("GRU", (1, 400, 16, 600), dtype, start=1)


def resident() -> Iterator[Sample]:
    """Yield those of `recurrent_resident.cu`: chunks of sequences, slices of states."""
    for dtype in (float32, float16, bfloat16):
        yield recurrent("LSTM", (4, 5, 16, 640), dtype, 2, lengths=True)
        yield recurrent("GRU", (5, 12, 16, 601), dtype, start=1)
    yield recurrent("LSTM", (1, 300, 16, 512), float16)


def batch_first() -> Iterator[Sample]:
    """Yield layers with transposed inputs and results, and joined directions."""
    sizes = ((5, 3, 24, float32), (4, 600, 24, float32), (5, 30, 600, float16))
    for given, op in product(
        sizes, (GRU(direction=BOTH, linear_before_reset=1), LSTM(direction=BOTH))
    ):
        time, batch, hidden, dtype = given

        def build(net: Net, op: GRU | LSTM = op, given: Any = given) -> Graph:
            time, batch, hidden, dtype = given
            shapes = [(2, op.gates * hidden, n) for n in (16, hidden)]
            w, r = (normal(*shape, dtype=dtype, scale=shape[-1] ** -0.5) for shape in shapes)
            x = net.input(batch, time, 16, dtype=dtype)
            y = net.apply(op, net.apply(Transpose(perm=(1, 0, 2)), x), w, r)
            joined = net.apply(Transpose(perm=(0, 2, 1, 3)), y)
            rows = net.apply(Reshape(), joined, np.array([0, 0, -1]))
            return net.outputs(net.apply(Transpose(perm=(1, 0, 2)), rows))

        found = sample_of_graph(build)
        found.graph.name = f"batch first {type(op).__name__} {time} {batch} {hidden} {dtype.name}"
        yield found


def large() -> Iterator[Sample]:
    """Yield those with products that store by TMA, in turns, or that fill shared memory again.

    racecheck reports these wrongly, see docs/debugging.md.
    """
    yield recurrent("GRU", (30, 1024, 64, 64))
    yield recurrent("LSTM", (4, 1001, 8, 61), float16, 2)
    yield recurrent("LSTM", (3, 5, 16, 1000), directions=2, lengths=True)
    yield recurrent("GRU", (3, 40, 16, 600), start=1)
    yield recurrent("GRU", (3, 400, 16, 600), float16, start=1)
    yield recurrent("LSTM", (6, 300, 16, 512), float16)
