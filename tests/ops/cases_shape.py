"""Operators that move, repeat, pick and place elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import BFLOAT16, FLOAT16, FLOAT32, Array, Case, draw

X = draw(1, (2, 3, 4, 5))
I64 = np.int64


def ints(*values: int) -> Array:
    return np.array(values, I64)


def scalar(value: float, dtype: Any = FLOAT32) -> Array:
    return np.array(value, dtype)


def slice_(
    x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
) -> Case:
    inputs = (x, starts, ends, axes, steps)
    last = max(i for i, v in enumerate(inputs) if v is not None)
    inputs = inputs[: last + 1]
    note = "-".join(str(v.tolist()) for v in inputs[1:] if v is not None)
    return Case("Slice", inputs, constants=tuple(range(1, last + 1)), error=0, note=note)


def pad(x: Array, pads: Array, mode: str, value: Array | None = None, **more: Any) -> Case:
    inputs = (x, pads) if value is None else (x, pads, value)
    constants = tuple(range(1, len(inputs)))
    note = str(pads.tolist())
    return Case("Pad", inputs, {"mode": mode, **more}, constants=constants, error=0, note=note)


def fixed(op: str, *inputs: Array | None, constants: tuple[int, ...] = (), **more: Any) -> Case:
    return Case(op, inputs, more, constants=constants, error=0)


SLICES = [
    slice_(X, ints(0, 1), ints(2, 3)),
    slice_(X, ints(1), ints(2**31 - 1), ints(2)),
    slice_(X, ints(-2), ints(-1), ints(-1)),
    slice_(X, ints(-1), ints(-(2**31)), ints(3), ints(-1)),
    slice_(X, ints(4, 0), ints(0, 100), ints(3, 2), ints(-2, 3)),
    slice_(X, ints(3), ints(1), ints(3)),
    slice_(X, ints(10), ints(0), ints(3), ints(-3)),
]
PADS = [
    *(
        pad(X, ints(0, 1, 2, 1, 0, 0, 1, 3), mode)
        for mode in ("constant", "edge", "reflect", "wrap")
    ),
    pad(X, ints(0, 1, 2, 1, 0, 0, 1, 3), "constant", scalar(7.5)),
    pad(X, ints(0, 0, -1, 1, 0, 0, 2, -2), "constant"),
    pad(draw(2, (3, 4), np.int32), ints(1, 0, 0, 2), "constant", scalar(-3, np.int32)),
    pad(draw(2, (3, 4), FLOAT16), ints(1, 0, 0, 2), "constant", scalar(-3, FLOAT16)),
]
MOVES = [
    *(fixed("Transpose", X, perm=p) for p in ([0, 2, 3, 1], [3, 2, 1, 0], [1, 0, 2, 3])),
    fixed("Transpose", X),
    fixed("Transpose", draw(2, (3, 4), np.uint8)),
    fixed("Transpose", scalar(3)),
    *(fixed("Concat", X, X[:, :1], X[:, :2], axis=axis) for axis in (1, -3)),
    fixed("Concat", X, axis=0),
    fixed("Concat", X[:0], X, axis=0),
    fixed("Concat", draw(1, (64, 200, 100)), draw(2, (3, 200, 100)), axis=0),
    Case("Split", (X,), {"axis": 3, "num_outputs": 2}, outputs=2, error=0),
    Case("Split", (X, ints(1, 0, 2)), {"axis": 1}, constants=(1,), outputs=3, error=0),
    fixed("Expand", X[:, :1], ints(1, 3, 1, 1), constants=(1,)),
    fixed("Expand", scalar(2), ints(2, 3), constants=(1,)),
    fixed("Expand", X, ints(1), constants=(1,)),
    fixed("Tile", X, ints(1, 2, 1, 3), constants=(1,)),
    fixed("Tile", X, ints(0, 2, 1, 3), constants=(1,)),
    fixed("DepthToSpace", draw(1, (2, 12, 3, 4)), blocksize=2),
    fixed("DepthToSpace", draw(1, (2, 12, 3, 4)), blocksize=2, mode="CRD"),
    fixed("SpaceToDepth", draw(1, (2, 3, 6, 4)), blocksize=2),
    fixed("ReverseSequence", draw(1, (4, 3, 2)), ints(4, 1, 2), batch_axis=1, time_axis=0),
    fixed("ReverseSequence", draw(1, (3, 4, 2)), ints(4, 1, 2), batch_axis=0, time_axis=1),
    fixed("Trilu", X, upper=0),
    fixed("Trilu", X, scalar(1, I64), constants=(1,)),
    fixed("Trilu", X, scalar(-2, I64), constants=(1,), upper=0),
    fixed("CenterCropPad", X, ints(6, 3), constants=(1,), axes=[1, 3]),
]
VIEWS = [
    fixed("Reshape", X, ints(6, -1), constants=(1,)),
    fixed("Reshape", X, ints(0, -1, 2), constants=(1,)),
    fixed("Reshape", X[:0], ints(0, 7, 2), constants=(1,), allowzero=1),
    *(fixed("Flatten", X, axis=axis) for axis in (0, 1, 2, 4, -1)),
    fixed("Squeeze", X[:1, :, :1], ints(0, -2), constants=(1,)),
    fixed("Squeeze", X[:1, :, :1]),
    fixed("Unsqueeze", X, ints(0, -1, 2), constants=(1,)),
    fixed("Identity", X),
]
GATHERS = [
    fixed("Gather", X, ints(2, 0, -1), axis=1),
    fixed("Gather", X, scalar(1, I64), constants=(1,), axis=2),
    fixed("Gather", X, np.array([[0, 1], [3, -4]], np.int32), axis=-2),
    fixed("GatherElements", X, np.abs(draw(1, (2, 2, 4, 5), I64)) % 3, axis=1),
    fixed("GatherElements", draw(2, (3, 3)), np.array([[1, -2, 0], [2, 0, 0]]), axis=0),
    fixed("GatherND", X, np.array([[0, 1], [1, 2]])),
    fixed("GatherND", X, np.array([[[0], [1]], [[1], [2]]]), batch_dims=1),
    fixed("GatherND", X, np.array([[[1, -1]], [[0, 3]]]), batch_dims=1),
    *(
        fixed("ScatterElements", draw(1, (3, 3)), i, draw(2, (2, 3)), axis=0, reduction=r)
        for r in ("none", "add", "mul", "max", "min")
        for i in (np.array([[1, 0, 2], [0, 2, -2]]),)
    ),
    *(
        fixed("ScatterND", draw(1, (4, 3)), np.array([[1], [3]]), draw(2, (2, 3)), reduction=r)
        for r in ("none", "add", "mul", "max", "min")
    ),
    fixed("ScatterND", draw(1, (4, 3)), np.array([[1, 2], [3, -3]]), draw(2, (2,))),
    fixed("ScatterND", draw(1, (4, 3)), np.zeros((0,), I64), draw(2, (4, 3))),
    fixed(
        "ScatterND",
        draw(1, (4, 3)),
        np.zeros((2, 3, 0), I64),
        draw(2, (2, 3, 4, 3)),
        reduction="add",
    ),
    *(
        fixed("OneHot", np.array([[0, 2], [-1, 5]]), ints(4), draw(1, (2,)), constants=(1,), axis=a)
        for a in (-1, 0, 1)
    ),
]
MADE = [
    Case(
        "ConstantOfShape",
        (ints(2, 3),),
        want=lambda _: np.zeros((2, 3), np.float32),
        constants=(0,),
    ),
    Case("Range", tuple(scalar(v, np.int32) for v in (3, 17, 4)), constants=(0, 1, 2), error=0),
    Case("Range", tuple(scalar(v) for v in (1, -2, -0.5)), constants=(0, 1, 2), error=0),
    Case("EyeLike", (draw(1, (3, 5)),), {"k": 1}, error=0),
    Case("EyeLike", (draw(1, (3, 5)),), {"k": -1, "dtype": 7}, error=0),
    Case("Shape", (X,), error=0),
    Case("Shape", (X,), {"start": 1, "end": -1}, error=0),
    Case("Size", (X,), error=0),
]
SEARCH = [
    *(
        Case("TopK", (x, ints(3)), {"axis": a, "largest": n}, constants=(1,), outputs=2, error=0)
        for x in (X[:, :, :3], np.array([[[1, 2, 2, 1], [3, 3, 3, 3], [0, 1, 0, 1]]], np.float32))
        for a in (1, -1)
        for n in (0, 1)
    ),
    Case("TopK", (X, ints(2)), {"axis": 0}, constants=(1,), outputs=2, error=0),
]
HALVES = [fixed("Transpose", draw(1, (2, 3, 4), t), perm=[2, 0, 1]) for t in (FLOAT32, FLOAT16)] + [
    Case("Transpose", (draw(1, (2, 3), BFLOAT16),), want=np.transpose, error=0),
    Case(
        "Concat",
        (draw(1, (2, 3), BFLOAT16), draw(2, (2, 1), BFLOAT16)),
        {"axis": 1},
        want=lambda *x: np.concatenate(x, 1),
        error=0,
    ),
]

CASES = [*SLICES, *PADS, *MOVES, *VIEWS, *GATHERS, *MADE, *SEARCH, *HALVES]
