"""Graphs of one node that finds, or writes to, elements of many rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tercet.runtime.ir.dtypes import float16

from .dry import normal
from .samples import Sample, sample


def samples() -> list[Sample]:
    """Return all of them."""
    return [*_written(), *_greatest()]


def _written() -> Iterator[Sample]:
    """Yield slices that many updates change: in several lists, or of several strips."""
    for rows, count, reduction in ((12, 2100, "add"), (1, 5000, "min")):
        where = np.arange(count)[:, None] * 31 % (2 * rows) - rows
        data = [normal(rows, 7), where, normal(count, 7)]
        yield sample("ScatterND", data, reduction=reduction)
    wide = [normal(count, 150).astype(float16) for count in (12, 99)]
    where = np.arange(99)[:, None] * 31 % 24 - 12
    yield sample("ScatterND", [wide[0], where, wide[1]])
    yield sample("ScatterND", [wide[0], where, wide[1]], reduction="add")
    image, where = normal(2, 12, 9, 11), np.hstack([where % 2, where])
    yield sample("ScatterND", [image, where, normal(99, 9, 11)], reduction="max")


def _greatest() -> Iterator[Sample]:
    """Yield short lines with equal elements, and some that are no numbers."""
    lines = np.where(normal(48, 300) > 2, np.float32("nan"), normal(48, 300).round(1))
    yield sample("TopK", [lines, np.array([35])], (1,), 2)
    across = lines.reshape(24, 2, 300).transpose(0, 2, 1).astype(float16)
    yield sample("TopK", [across, np.array([64])], (1,), 2, axis=1, largest=0)
    yield sample("TopK", [(normal(48, 300) * 9).astype(np.int32), np.array([3])], (1,), 2)
    whole = np.where(normal(1030, 64) > 2, np.float32("nan"), normal(1030, 64).round(1))
    whole[::3, 5:9], whole[::3, 40] = np.inf, -np.inf
    yield sample("TopK", [whole, np.array([64])], (1,), 2)
    yield sample("TopK", [whole, np.array([50])], (1,), 2, largest=0)
    whole = (normal(210, 100, 2) * 9).astype(np.int32)
    yield sample("TopK", [whole, np.array([90])], (1,), 2, axis=1, largest=0)
    yield sample("TopK", [normal(260, 128).round(1).astype(float16), np.array([128])], (1,), 2)
    places = (normal(9, 64) * 9).astype(np.int64) + (1 << 40)
    yield sample("TopK", [places, np.array([64])], (1,), 2, largest=0)
    wide = np.where(normal(5, 100) > 1, np.nan, normal(5, 100).round(1).astype(np.float64))
    yield sample("TopK", [wide, np.array([80])], (1,), 2)
