"""Cropping and resizing of images."""

from __future__ import annotations

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .declaration import Int32, T, contrib
from .heads import positions


@contrib("CropAndResize")
def crop_and_resize(
    b: NodeBuilder,
    x: T,
    rois: T,
    batch_indices: Int32,
    crop_size: Int32,
    *,
    extrapolation_value: float = 0.0,
    mode: str = "bilinear",
) -> str:
    """Normalized boxes of images, resized with aligned corners."""
    if mode not in ("bilinear", "nearest"):
        raise b.error(f"mode='{mode}'; expected bilinear or nearest")
    sizes = b.cast(crop_size, dtypes.int64)
    places: list[str] = []
    inside: str | None = None
    for axis in (0, 1):
        place = _crop_places(b, x, rois, sizes, axis)
        last = b.cast(b.Sub(b.size(x, 2 + axis), b.ints(1)), b.dtype(x))
        seen = b.And(b.GreaterOrEqual(place, b.number(0, x)), b.LessOrEqual(place, last))
        if mode == "nearest":
            place = b.Floor(b.Add(place, b.number(0.5, x)))
        seen, place = (b.Unsqueeze(each, b.ints(2 - axis)) for each in (seen, place))
        inside = seen if inside is None else b.And(inside, seen)
        span = b.Max(last, b.number(1, x))
        places.append(b.Sub(b.Div(b.Mul(place, b.number(2, x)), span), b.number(1, x)))
    whole = b.Concat(b.size(rois, 0), sizes, axis=0)
    grid = [b.Unsqueeze(b.Expand(each, whole), b.ints(3)) for each in reversed(places)]
    images = b.Gather(x, batch_indices, axis=0)
    how = "linear" if mode == "bilinear" else "nearest"
    y = b.GridSample(
        images, b.Concat(*grid, axis=3), align_corners=1, mode=how, padding_mode="border"
    )
    assert inside is not None
    return b.Where(b.Unsqueeze(inside, b.ints(1)), y, b.number(extrapolation_value, x))


def _crop_places(b: NodeBuilder, x: str, rois: str, sizes: str, axis: int) -> str:
    """Return the sample positions of each box along an axis, in pixels: [boxes, samples]."""
    first, last = (b.slice(rois, 1, at, at + 1) for at in (axis, axis + 2))
    count = b.slice(sizes, 0, axis, axis + 1)
    pixels = b.cast(b.Sub(b.size(x, 2 + axis), b.ints(1)), b.dtype(x))
    steps = b.cast(b.Max(b.Sub(count, b.ints(1)), b.ints(1)), b.dtype(x))
    step = b.Div(b.Mul(b.Sub(last, first), pixels), steps)
    numbers = b.cast(positions(b, count), b.dtype(x))
    spread = b.Add(b.Mul(first, pixels), b.Mul(numbers, step))
    middle = b.Mul(b.Mul(b.Add(first, last), pixels), b.number(0.5, x))
    return b.Where(b.Greater(count, b.ints(1)), spread, middle)
