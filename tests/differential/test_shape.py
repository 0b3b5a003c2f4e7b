"""Operators that move, repeat and cut elements: equal to the bit in every dtype."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from tercet.runtime.ir.dtypes import FLOATS, TO_ONNX

from .generate import INT32, INT64, Array, Dice, Shape, ints, only
from .oracles import Make, agree
from .sample import Sample


def data(op: str, dice: Dice, opset: int, shape: Shape, parameter: str = "T") -> Array:
    """Return elements of a dtype that the operator takes, edges among them."""
    return dice.edged(dice.dtype(op, opset, parameter), shape)


def reshape(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op, 5)
    shape = dice.shape(0, 4)
    target = list(shape)
    for _ in range(dice.randint(0, 3)):
        i = dice.randint(0, len(target))
        if dice.chance(0.5):
            target.insert(i, 1)
        elif i + 1 < len(target):
            target[i : i + 2] = [target[i] * target[i + 1]]
    zero = dice.randint(0, 1) if opset >= 14 else None
    if not zero and 0 not in shape:
        target = [0 if i < len(shape) and d == shape[i] and dice.chance(0.3) else d
                  for i, d in enumerate(target)]  # fmt: skip
    elif not zero:
        target = [d if d else shape.index(0) and 0 for d in shape]
    if target and dice.chance(0.5) and 0 not in shape:
        target[dice.randrange(len(target))] = -1
    x = data(op, dice, opset, shape)
    return Sample(op, (x, ints(target)), only({"allowzero": zero}), opset, (1,))


def flatten(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op, 9)
    x = data(op, dice, opset, dice.shape(0 if opset >= 11 else 1))
    axis = dice.randint(-x.ndim if opset >= 11 else 0, x.ndim)
    attributes = dice.given(axis=(axis,)) if x.ndim else {"axis": 0}
    first = attributes.get("axis", 1)
    first = first + x.ndim if first < 0 else first
    sizes = math.prod(x.shape[:first]), math.prod(x.shape[first:])
    return Sample(op, (x,), attributes, opset, want=lambda v: v.reshape(sizes))


def squeeze(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    shape = tuple(1 if dice.chance(0.5) else dice.size() for _ in range(dice.randint(0, 5)))
    x = data(op, dice, opset, shape)
    among = [i - len(shape) if opset >= 11 and dice.chance(0.4) else i
             for i, d in enumerate(shape) if d == 1 and dice.chance(0.7)]  # fmt: skip
    if opset < 13:
        return Sample(op, (x,), {"axes": among} if among else {}, opset,
                      want=lambda v: np.squeeze(v, tuple(among) or None))  # fmt: skip
    return Sample(op, (x, ints(among)) if among or dice.chance(0.5) else (x,), {}, opset, (1,))


def unsqueeze(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    x = data(op, dice, opset, dice.shape(0, 3))
    rank = x.ndim + dice.randint(1, 3)
    axes = dice.sample(range(rank), rank - x.ndim)
    axes = [a - rank if opset >= 11 and dice.chance(0.4) else a for a in axes]

    def want(v: Array, *_: Array) -> Array:
        return np.expand_dims(v, tuple(axes))

    if opset < 13:
        return Sample(op, (x,), {"axes": axes if opset >= 11 else sorted(axes)}, opset, want=want)
    return Sample(op, (x, ints(axes)), {}, opset, (1,), want=want)


def transpose(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    x = data(op, dice, opset, dice.shape(0, 5))
    perm = dice.sample(range(x.ndim), x.ndim)
    return Sample(op, (x,), {"perm": perm} if perm and dice.chance(0.8) else {}, opset)


def concat(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op, 4)
    dtype = dice.dtype(op, opset)
    shape = dice.shape(1)
    axis = dice.axis(len(shape)) if opset >= 11 else dice.randrange(len(shape))
    arrays: list[Array] = []
    for _ in range(dice.randint(1, 4)):
        sizes = list(shape)
        sizes[axis] = dice.size()
        arrays.append(dice.edged(dtype, tuple(sizes)))
    stored = tuple(i for i in range(len(arrays)) if dice.chance(0.2))
    return Sample(op, tuple(arrays), {"axis": axis}, opset, stored)


def split(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op, 2)
    shape = list(dice.shape(1, empty=False))
    axis = dice.axis(len(shape)) if opset >= 11 else dice.randrange(len(shape))
    count = dice.randint(1, 4)
    if dice.chance(0.5):
        sizes = [dice.randint(0, 3) for _ in range(count)]
        shape[axis] = sum(sizes)
    else:
        sizes, shape[axis] = None, dice.randint(1, 3) * count
    if sizes is None and opset >= 18:  # the last one may be smaller
        shape[axis] -= dice.randint(0, min(count, shape[axis] // count) - 1)
    x = data(op, dice, opset, tuple(shape))
    attributes: dict[str, Any] = {"axis": axis}
    if sizes is not None and opset < 13:
        return Sample(op, (x,), attributes | {"split": sizes}, opset, outputs=count)
    if sizes is not None:
        return Sample(op, (x, ints(sizes)), attributes, opset, (1,), outputs=count)
    if opset >= 18:
        chunk = -(-shape[axis] // count)
        if shape[axis] <= chunk * (count - 1):
            shape[axis] = chunk * count
            x = data(op, dice, opset, tuple(shape))
        attributes["num_outputs"] = count
    return Sample(op, (x,), attributes, opset, outputs=count)


def slice_(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    x = data(op, dice, opset, dice.shape(1))
    axes = dice.axes(x.ndim, 1)
    if opset < 11:
        axes = [a % x.ndim for a in axes]
    index = INT64 if opset < 10 else dice.some(INT32, INT64)
    huge = np.iinfo(index).max, np.iinfo(index).min
    bounds = (-8, -3, -2, -1, 0, 1, 2, 3, 5, 9, *huge)
    starts, ends = ([dice.choice(bounds) for _ in axes] for _ in range(2))
    if opset < 10:
        pairs = [(dice.randint(0, 2), dice.choice((-1, 2, 3, huge[0]))) for _ in axes]
        starts, ends = ([p[i] for p in pairs] for i in range(2))
        return Sample(op, (x,), {"starts": starts, "ends": ends, "axes": axes}, opset)
    steps = [dice.choice((1, 1, 2, 3, -1, -2, 100, -100, *huge)) for _ in axes]
    for i, step in enumerate(steps):
        if dice.chance(0.7):  # mostly something is left
            low, high = dice.choice((-8, -5, 0, 0, 1)), dice.choice((2, 3, 9, -1, huge[0]))
            starts[i], ends[i] = (low, high) if step > 0 else (high, dice.choice((-9, 0, huge[1])))
    inputs: list[Array | None] = [x, ints(starts, index), ints(ends, index)]
    if sorted(a % x.ndim for a in axes) == list(range(len(axes))) and dice.chance(0.5):
        order = sorted(range(len(axes)), key=lambda i: axes[i] % x.ndim)
        inputs = [x, *(ints([v[i] for i in order], index) for v in (starts, ends)), None]
        steps = [steps[i] for i in order]
    else:
        inputs.append(ints(axes, index))
    if dice.chance(0.7):
        inputs.append(ints(steps, index))
    return Sample(op, tuple(inputs), {}, opset, (1, 2, 3, 4), want=sliced)


def sliced(
    x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
) -> Array:
    """Return a slice, clamped as the specification says."""
    for i, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        axis, step = int(i if axes is None else axes[i]), 1 if steps is None else int(steps[i])
        size = x.shape[axis]
        low, high = (0, size) if step > 0 else (-1, size - 1)
        start, end = (v + size if v < 0 else v for v in (start, end))
        start = min(max(start, max(low, 0)), high)
        picked = range(start, min(max(end, low), high), step)
        x = np.take(x, list(picked), axis)
    return x


def pad(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op, 2)
    shape = dice.shape(1, 4, empty=False)
    mode = dice.choice(("constant", "edge", "reflect", "wrap")[: 4 if opset >= 19 else 3])
    axes = dice.axes(len(shape), 1) if opset >= 18 and dice.chance(0.5) else None
    chosen = range(len(shape)) if axes is None else [a % len(shape) for a in axes]
    widths = {axis: _widths(mode, shape[axis], dice) for axis in chosen}
    pads = [widths[axis][side] for side in (0, 1) for axis in chosen]
    dtype = dice.dtype(op, opset)
    x = dice.edged(dtype, shape)

    def want(data: Array, pads: Any = None, value: Array | None = None, axes: Any = None) -> Array:
        kept = [slice(max(0, -b), n - max(0, -e)) for n, (b, e) in
                ((n, widths.get(i, (0, 0))) for i, n in enumerate(shape))]  # fmt: skip
        added = [tuple(max(0, w) for w in widths.get(i, (0, 0))) for i in range(len(shape))]
        if mode != "constant":
            return np.pad(data[tuple(kept)], added, mode)
        fill = more.get("value", 0) if value is None else value
        return np.pad(data[tuple(kept)], added, mode, constant_values=fill)

    more: dict[str, Any] = {}
    if opset < 11:
        more = {"value": dice.uniform(-2, 2)} if mode == "constant" and dice.chance(0.5) else {}
        return Sample(op, (x,), {"pads": pads, "mode": mode, **more}, opset, want=want)
    value = dice.array(dtype) if dice.chance(0.5) else None
    inputs: tuple[Array | None, ...] = (x, ints(pads), value)
    if axes is not None:
        inputs = (*inputs, ints(axes, dice.some(INT32, INT64)))
    return Sample(op, inputs, {"mode": mode}, opset, (1, 3), want=want)


def _widths(mode: str, size: int, dice: Dice) -> tuple[int, int]:
    """Return what is added before and after an axis; negative numbers cut."""
    cut = [dice.randint(0, 1) if dice.chance(0.2) else 0 for _ in range(2)]
    cut = cut if sum(cut) < size else [0, 0]
    left = size - sum(cut)
    maximum = {"reflect": left - 1, "wrap": 3 * left}.get(mode, 3)
    before, after = (-c if c else dice.randint(0, maximum) for c in cut)
    return before, after


def expand(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    full, other = dice.broadcast(2)
    x = data(op, dice, opset, full)
    return Sample(op, (x, ints(other)), {}, opset, (1,))


def tile(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op, 6)
    x = data(op, dice, opset, dice.shape(0))
    return Sample(op, (x, ints([dice.randint(0, 3) for _ in x.shape])), {}, opset, (1,))


def identity(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    return Sample(
        op, (data(op, dice, opset, dice.shape(), "V" if opset >= 14 else "T"),), {}, opset
    )


def shape(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    x = data(op, dice, opset, dice.shape())
    bounds = range(-x.ndim - 2, x.ndim + 3)
    attributes = dice.given(start=bounds, end=bounds) if op == "Shape" and opset >= 15 else {}
    cut = slice(attributes.get("start", 0), attributes.get("end"))
    want = {"Shape": lambda v: np.array(v.shape[cut], INT64)}.get(op)
    return Sample(op, (x,), attributes, opset, want=want)


def blocks(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    size = dice.randint(1, 3)
    batch, channels, height, width = (dice.size() for _ in range(4))
    shape = (batch, channels * size**2, height, width)
    if op == "SpaceToDepth":
        shape = (batch, channels, height * size, width * size)
    mode = dice.given(mode=("DCR", "CRD")) if op == "DepthToSpace" and opset >= 11 else {}
    x = data(op, dice, opset, shape)
    return Sample(op, (x,), {"blocksize": size, **mode}, opset)


def reverse_sequence(op: str, dice: Dice) -> Sample:
    x = data(op, dice, 10, dice.shape(2, empty=False))
    time = dice.randint(0, 1)
    lengths = ints([dice.randint(1, x.shape[time]) for _ in range(x.shape[1 - time])])
    return Sample(op, (x, lengths), {"time_axis": time, "batch_axis": 1 - time}, 10)


def trilu(op: str, dice: Dice) -> Sample:
    x = data(op, dice, 14, dice.shape(2))
    k = ints(dice.randint(-6, 6)) if dice.chance(0.7) else None
    return Sample(op, (x, k), dice.given(upper=(0, 1)), 14, (1,))


def center_crop_pad(op: str, dice: Dice) -> Sample:
    x = data(op, dice, 18, dice.shape(1, empty=False))
    axes = dice.axes(x.ndim, 1)
    if dice.chance(0.4):
        axes = list(range(x.ndim))
        attributes: dict[str, Any] = {}
    else:
        attributes = {"axes": axes}
    target = ints([dice.randint(1, 8) for _ in axes], dice.some(INT32, INT64))
    return Sample(op, (x, target), attributes, 18, (1,))


def range_(op: str, dice: Dice) -> Sample:
    dtype = dice.dtype(op, 11)
    step = dice.some(1, 2, 3, 0.5, -1, -2) if dtype in FLOATS else dice.some(1, 2, 3, -1, -2)
    numbers = (dice.randint(-5, 5), dice.randint(-9, 12), step)
    return Sample(op, tuple(np.array(n, dtype) for n in numbers), {}, 11, (0, 1, 2))


def constant_of_shape(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    attributes: dict[str, Any] = {}
    if dice.chance(0.7):
        dtype = dice.dtype(op, opset, "T2")
        attributes["value"] = numpy_helper.from_array(dice.array(dtype, (1,)))
    return Sample(op, (ints(dice.shape()),), attributes, opset, (0,))


def eye_like(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    x = data(op, dice, opset, dice.shape(2, 2), "T1")
    target = dice.dtype(op, opset, "T2")
    return Sample(op, (x,), dice.given(k=range(-3, 4), dtype=(TO_ONNX[target],)), opset)


MAKERS: dict[str, Make] = {
    "CenterCropPad": center_crop_pad,
    "Concat": concat,
    "ConstantOfShape": constant_of_shape,
    "DepthToSpace": blocks,
    "Expand": expand,
    "EyeLike": eye_like,
    "Flatten": flatten,
    "Identity": identity,
    "Pad": pad,
    "Range": range_,
    "Reshape": reshape,
    "ReverseSequence": reverse_sequence,
    "Shape": shape,
    "Size": shape,
    "Slice": slice_,
    "SpaceToDepth": blocks,
    "Split": split,
    "Squeeze": squeeze,
    "Tile": tile,
    "Transpose": transpose,
    "Trilu": trilu,
    "Unsqueeze": unsqueeze,
}


@pytest.mark.parametrize("op", MAKERS)
def test_agrees(op: str) -> None:
    agree(op, MAKERS[op])
