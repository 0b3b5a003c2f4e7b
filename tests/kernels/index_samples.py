"""Graphs of one node that finds, or writes to, elements of many rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tercet.runtime.ir.dtypes import float16

from .dry import normal
from .samples import Sample, sample


def samples() -> list[Sample]:
    """Return all of them."""
    return [*_written(), *_greatest(), *_selected()]


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


def _selected() -> Iterator[Sample]:
    """Yield lines of which a few elements are the first, found by bounds."""
    rows = _rows(700)
    for dtype, k, largest in (
        *((np.float32, 20, 1), (np.float32, 1, 0), (np.float32, 100, 0), (np.float32, 300, 1)),
        *((float16, 20, 0), (float16, 128, 1), (np.float64, 20, 1), (np.float64, 61, 0)),
    ):
        yield sample("TopK", [rows.astype(dtype), np.array([k])], (1,), 2, largest=largest)
    whole = np.vstack([normal(3, 1024) * 99, np.arange(1024) // 40, np.zeros(1024)])
    extreme = np.array([[np.iinfo(np.int64).min, np.iinfo(np.int64).max]] * 300).reshape(1, 600)
    yield sample("TopK", [extreme, np.array([301])], (1,), 2, largest=0)
    yield sample("TopK", [extreme, np.array([20])], (1,), 2)
    yield sample("TopK", [extreme, np.array([20])], (1,), 2, largest=0)
    for integer, k, largest in ((np.int32, 33, 1), (np.uint8, 8, 0), (np.int64, 40, 1)):
        yield sample("TopK", [whole.astype(integer), np.array([k])], (1,), 2, largest=largest)
    columns = _rows(1300).T.reshape(1300, 3, -1).transpose(1, 0, 2)
    yield sample("TopK", [columns, np.array([40])], (1,), 2, axis=1)
    yield sample("TopK", [_rows(8400)[:4], np.array([300])], (1,), 2)
    yield sample("TopK", [_rows(9001)[4:].astype(np.float64), np.array([512])], (1,), 2, largest=0)
    many = _rows(5000)
    many[:, 400:900] = 3  # equal ones that are the last of those found
    yield sample("TopK", [many, np.array([1000])], (1,), 2)
    yield sample("TopK", [many[:2, :600], np.array([512])], (1,), 2, largest=0)
    longest = _rows(70000)[4:6].astype(np.float64)
    yield sample("TopK", [longest, np.array([1000])], (1,), 2)
    long = _rows(36000)[3:].astype(float16).round(1)  # in chunks
    yield sample("TopK", [np.stack([long, -long], 2), np.array([50])], (1,), 2, axis=1)


def _rows(size: int) -> np.ndarray:
    """Return lines in any order, sorted, equal, with few values, and with some that are no numbers.

    Returns:
        ``[9, size]``, float32.
    """
    random = normal(9, size)
    random[1].sort()
    random[2] = -random[1]
    random[3], random[4] = 0, random[4].round()
    random[5, ::3], random[5, 1::3] = np.nan, np.inf
    random[6, ::2], random[6, 1::4] = -np.inf, np.nan
    random[7, 11:] = -np.inf
    random[8, ::2], random[8, 1::2] = 0, -0.0
    return random
