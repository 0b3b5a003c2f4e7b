"""Sampling from images by grids and regions, and choosing among boxes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import FLOATS, float32

from .generate import INT64, Array, Dice, ints
from .oracles import Make, agree
from .sample import Sample, each, smooth


def grid_sample(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    dtype = dice.dtype(op, opset, "T1", among=tuple(FLOATS)) if opset > 16 else float32
    kind = dice.dtype(op, opset, "T2", among=tuple(FLOATS))
    axes = 3 if opset >= 20 and dice.chance(0.3) else 2
    batch, image = dice.randint(1, 2), [dice.randint(1, 5) for _ in range(axes)]
    x = dice.array(dtype, (batch, dice.randint(1, 3), *image))
    if opset == 16 or 1 in image:
        kind = float32  # onnx.reference fails, onnxruntime knows no other
    grid = dice.array(kind, (batch, *(dice.randint(1, 4) for _ in range(axes)), axes), -1.4, 1.4)
    names = ("nearest", "linear", "cubic") if opset >= 20 else ("nearest", "bilinear", "bicubic")
    mode = dice.choice(names[: 2 if axes == 3 else 3])
    attributes = {"mode": mode} | dice.given(
        padding_mode=("zeros", "border", "reflection"), align_corners=(0, 1)
    )
    if mode[-5:] == "cubic" and attributes.get("padding_mode") == "border":
        x, grid = x.astype(float32), grid.astype(float32)  # onnxruntime knows no other
    return Sample(op, (x, grid), attributes, opset,
                  bound=each(0) if mode == "nearest" else smooth(24))  # fmt: skip


def affine_grid(op: str, dice: Dice) -> Sample:
    dtype = dice.dtype(op, 20, "T1", among=tuple(FLOATS))
    axes, batch = dice.some(2, 3), dice.randint(1, 3)
    theta = dice.array(dtype, (batch, axes, axes + 1))
    size = [batch, dice.randint(1, 3), *(dice.randint(1, 4) for _ in range(axes))]
    attributes = dice.given(align_corners=(0, 1))

    def want(theta: Array, size: Array) -> Array:
        corners = bool(attributes.get("align_corners"))
        lines = [np.linspace(-1, 1, n) if corners and n > 1 else (2 * np.arange(n) + 1) / n - 1
                 for n in size[2:]]  # fmt: skip
        mesh = np.meshgrid(*lines, indexing="ij")
        points = np.stack([*reversed(mesh), np.ones_like(mesh[0])], -1)
        return np.einsum("nij,...j->n...i", theta, points)

    return Sample(op, (theta, ints(size)), attributes, 20, (1,), bound=smooth(8), want=want)


def roi_align(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    dtype = dice.dtype(op, opset, "T1", among=tuple(FLOATS))
    batch, height, width = (dice.randint(1, 3), *(dice.randint(2, 9) for _ in range(2)))
    x = dice.array(dtype, (batch, dice.randint(1, 3), height, width))
    count = dice.randint(1, 4)
    corners = [dice.array(dtype, (count, 1), 0, n - 1) for n in (width, height)]
    extents = [dice.array(dtype, (count, 1), 0.5, n) for n in (width, height)]
    rois = np.concatenate([*corners, *(c + e for c, e in zip(corners, extents, strict=True))], 1)
    attributes: dict[str, Any] = dice.given(
        mode=("avg", "max"),
        output_height=(1, 2, 3),
        output_width=(1, 2, 3),
        sampling_ratio=(0, 1, 2, 3),
        spatial_scale=(1.0, 0.5),
    )
    if opset >= 16:
        attributes |= dice.given(coordinate_transformation_mode=("half_pixel", "output_half_pixel"))
    images = dice.array(INT64, (count,), 0, batch - 1)
    return Sample(op, (x, rois.astype(dtype), images), attributes, opset, bound=smooth(8))


def max_roi_pool(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    dtype = dice.floating(op, opset)
    batch, height, width = (dice.randint(1, 3), *(dice.randint(3, 9) for _ in range(2)))
    x = dice.array(dtype, (batch, dice.randint(1, 3), height, width))
    rows = []
    for _ in range(dice.randint(1, 4)):
        left, top = dice.randrange(width), dice.randrange(height)
        rows.append([dice.randrange(batch), left, top, dice.randint(left, width - 1),
                     dice.randint(top, height - 1)])  # fmt: skip
    shape = [dice.randint(1, 3), dice.randint(1, 3)]

    def want(x: Array, rois: Array) -> Array:
        y = np.zeros((len(rois), x.shape[1], *shape), x.dtype)
        for i, (image, *ends) in enumerate(rois.astype(int).tolist()):
            size = [ends[3 - a] - ends[1 - a] + 1 for a in (0, 1)]
            for at in np.ndindex(*shape):
                low = [at[a] * size[a] // shape[a] + ends[1 - a] for a in (0, 1)]
                high = [-(-(at[a] + 1) * size[a] // shape[a]) + ends[1 - a] for a in (0, 1)]
                y[i, :, *at] = x[image, :, low[0] : high[0], low[1] : high[1]].max((1, 2))
        return y

    inputs = x, np.array(rows, dtype)
    return Sample(op, inputs, {"pooled_shape": shape}, opset, bound=each(0), want=want)


def suppression(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    batch, classes, count = dice.randint(1, 2), dice.randint(1, 3), dice.randint(1, 8)
    first = dice.array(float32, (batch, count, 2))
    boxes = np.concatenate([first, first + np.abs(dice.array(float32, (batch, count, 2)))], -1)
    attributes = dice.given(center_point_box=(0, 1))
    if attributes.get("center_point_box"):
        boxes = np.abs(boxes)
    elif dice.chance(0.3):
        boxes = boxes[..., [2, 1, 0, 3]]
    scores = dice.array(float32, (batch, classes, count), 0, 1)
    inputs: list[Array | None] = [boxes, scores, None, None, None]
    if dice.chance(0.9):
        inputs[2] = ints([dice.randint(0 if dice.chance(0.2) else 1, 5)])
    if dice.chance(0.7):
        inputs[3] = np.array([dice.uniform(0, 1)], float32)
    if dice.chance(0.5):
        inputs[4] = np.array([dice.uniform(0, 1)], float32)
    return Sample(op, tuple(inputs), attributes, opset, (2, 3, 4))


MAKERS: dict[str, Make] = {
    "AffineGrid": affine_grid,
    "GridSample": grid_sample,
    "MaxRoiPool": max_roi_pool,
    "NonMaxSuppression": suppression,
    "RoiAlign": roi_align,
}


@pytest.mark.parametrize("op", MAKERS)
def test_agrees(op: str) -> None:
    agree(op, MAKERS[op])
