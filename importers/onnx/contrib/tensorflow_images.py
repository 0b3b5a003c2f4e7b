"""TensorFlow's operators of images, [n, height, width, channels]."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ....runtime.ir import dtypes
from ....runtime.ir.types import Array
from .builder import NodeBuilder
from .declaration import Anything, Float32, Int32, T
from .tensorflow_names import operator


@operator("Dilation2D")
def dilation_2d(
    b: NodeBuilder,
    x: T,
    window: T,
    *,
    strides: tuple[int, ...],
    rates: tuple[int, ...],
    padding: str,
) -> str:
    """Return greatest sums of an image and a window [height, width, channels] over each place."""
    if padding not in ("SAME", "VALID"):
        raise b.error(f"padding={padding!r}; expected SAME or VALID")
    if len(strides) != 4 or len(rates) != 4:
        raise b.error(f"strides={strides}, rates={rates}; expected 4 of each")
    sizes = [b.need_extent(window, axis) for axis in (0, 1)]
    reach = [(size - 1) * rate + 1 for size, rate in zip(sizes, rates[1:3], strict=True)]
    places = [b.need_extent(x, axis) for axis in (1, 2)]
    steps = strides[1:3]
    counts = [
        -(-place // step) if padding == "SAME" else (place - size) // step + 1
        for place, size, step in zip(places, reach, steps, strict=True)
    ]
    missing = [
        max(0, (count - 1) * step + size - place)
        for count, step, size, place in zip(counts, steps, reach, places, strict=True)
    ]
    before = [each // 2 for each in missing]
    after = [each - first for each, first in zip(missing, before, strict=True)]
    lowest = b.number(-np.inf, x)
    wide = b.Pad(x, b.ints(*before, *after), lowest, b.ints(1, 2)) if any(missing) else x
    found = ""
    for row in range(sizes[0]):
        for column in range(sizes[1]):
            starts = (row * rates[1], column * rates[2])
            ends = [s + (n - 1) * by + 1 for s, n, by in zip(starts, counts, steps, strict=True)]
            part = b.Slice(wide, b.ints(*starts), b.ints(*ends), b.ints(1, 2), b.ints(*steps))
            line = b.slice(b.slice(window, 0, row, row + 1), 1, column, column + 1)
            total = b.Add(part, line)
            found = b.Max(found, total) if found else total
    return found


def _cubic(x: Array, outer: tuple[float, ...], inner: tuple[float, ...]) -> Array:
    return np.where(x < 1, np.polyval(inner, x), np.where(x < 2, np.polyval(outer, x), 0))


def _lanczos(radius: float) -> Callable[[Array], Array]:
    return lambda x: np.where(x < radius, np.sinc(x) * np.sinc(x / radius), 0)


def _gaussian(x: Array) -> Array:
    return np.where(x < 1.5, np.exp(-(x**2) / (2 * 0.5**2)), 0)


#: Radius and weight at a distance of 0 or more, by name.
_KERNELS: Mapping[str, tuple[float, Callable[[Array], Array]]] = {
    "lanczos1": (1, _lanczos(1)),
    "lanczos3": (3, _lanczos(3)),
    "lanczos5": (5, _lanczos(5)),
    "gaussian": (1.5, _gaussian),
    "box": (1, lambda x: np.where(x < 0.5, 1.0, np.where(x == 0.5, 0.5, 0.0))),
    "triangle": (1, lambda x: np.maximum(1 - x, 0)),
    "keyscubic": (2, lambda x: _cubic(x, (-0.5, 2.5, -4, 2), (1.5, -2.5, 0, 1))),
    "mitchellcubic": (
        2,
        lambda x: _cubic(x, (-7 / 18, 2, -10 / 3, 16 / 9), (7 / 6, -2, 0, 8 / 9)),
    ),
}


@operator("ScaleAndTranslate")
def scale_and_translate(
    b: NodeBuilder,
    images: Anything,
    size: Int32,
    scale: Float32,
    translation: Float32,
    *,
    kernel_type: str = "lanczos3",
    antialias: int = 1,
) -> str:
    """Return resized images, float32, as tf.image.resize makes them with antialias or a Lanczos."""
    if kernel_type not in _KERNELS:
        raise b.error(f"kernel_type={kernel_type!r}; expected one of {', '.join(_KERNELS)}")
    known = [b.value(each) for each in (size, scale, translation)]
    if any(each is None or each.shape != (2,) for each in known):
        raise b.unsupported(
            "size, scale or translation is computed", "freeze the sizes before the export"
        )
    to, by, shift = (np.asarray(each, np.float64) for each in known)
    found = b.cast(images, dtypes.float32)
    rows, columns = (
        b.constant(_weights(b.need_extent(images, 1 + i), int(to[i]), by[i], shift[i],
                            kernel_type, antialias=bool(antialias)))
        for i in range(2)
    )  # fmt: skip
    found = b.Einsum(rows, found, equation="yh,nhwc->nywc")
    return b.Einsum(columns, found, equation="xw,nywc->nyxc")


def _weights(
    size: int, count: int, scale: float, translation: float, kernel: str, *, antialias: bool
) -> Array:
    """Return the weight of each of `size` samples in each of `count` results."""
    radius, weight = _KERNELS[kernel]
    width = max(1 / scale, 1) if antialias else 1.0
    places = (np.arange(count) + 0.5 - translation) / scale
    first = np.ceil(places - radius * width - 0.5)[:, None]
    last = np.floor(places + radius * width - 0.5)[:, None]
    samples = np.arange(size)
    found = weight(np.abs(samples + 0.5 - places[:, None]) / width)
    found = np.where((samples >= first) & (samples <= last), found, 0)
    total = found.sum(1, keepdims=True)
    is_inside = (places >= 0) & (places <= size)
    scaled = np.divide(found, total, out=found, where=np.abs(total) >= 1000 * np.finfo("f").tiny)
    return np.where(is_inside[:, None], scaled, 0).astype(np.float32)
