"""Wrong outputs, made of right ones: what a referee must never call ok."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ...runtime.ir.dtypes import FLOATS, bfloat16
from ...runtime.ir.types import Array

_TILE = 16
_ROWS = 8
_CUT_BITS = 16
_FEW_BITS = 11
_MANY = 16
_WARP = 32

Plant = Callable[[Array, np.random.Generator], Array | None]


def planted(data: Array, other: Array | None = None) -> Iterator[tuple[str, Array]]:
    """Yield wrong outputs with their names.

    Args:
        data: a right output, of any dtype.
        other: the same output for another input, where there is one.
    """
    kinds = {**ANY, **(FLOATING if data.dtype in FLOATS else DISCRETE)}
    if not data.size or data.dtype == object:
        kinds = {}
    for name, plant in kinds.items():
        wrong = plant(data.copy(), np.random.default_rng(0))
        if wrong is not None:
            yield name, wrong.astype(data.dtype, copy=False)
    if kinds:
        yield from _of_another_type(data)
    if other is not None and other.shape == data.shape and other.dtype == data.dtype:
        yield "outputs of another input", other.copy()


def _of_another_type(x: Array) -> Iterator[tuple[str, Array]]:
    """Yield the same numbers, or the same bits, as another type."""
    yield "one more axis", x[None]
    if x.size > 1:
        yield "in a row", x.reshape(-1) if x.ndim > 1 else x.reshape(-1, 1)
    wide = {"f": np.float64, "i": np.float64, "u": np.int64, "b": np.int32}.get(x.dtype.kind)
    if wide is not None and wide != x.dtype.type:
        yield "of a wider type", x.astype(wide)
    bits = {2: np.int16, 4: np.int32, 8: np.int64}.get(x.dtype.itemsize)
    if bits is not None and x.dtype in FLOATS:
        yield "the bits as integers", np.ascontiguousarray(x).view(bits)


def _scale(x: Array) -> float:
    return float(np.max(np.abs(x.astype(np.float64)), where=np.isfinite(x), initial=0.0))


def _rows(x: Array) -> Array | None:
    """Permute along the first axis that has two elements."""
    axis = next((i for i, size in enumerate(x.shape) if size > 1), None)
    return None if axis is None else np.roll(x, 1, axis)


def _shifted(x: Array) -> Array | None:
    return np.roll(x, 1, -1) if x.ndim and x.shape[-1] > 1 else None


def _transposed(x: Array) -> Array | None:
    if x.ndim < 2 or min(x.shape[-2:]) < 2:
        return None
    return x.swapaxes(-1, -2).reshape(x.shape)


def _along_channels(x: Array) -> int | None:
    axis = 1 if x.ndim > 2 else x.ndim - 1
    return axis if x.ndim and x.shape[axis] > 1 else None


def _channel(change: Callable[[Array], Array]) -> Plant:
    def plant(x: Array, rng: np.random.Generator) -> Array | None:
        axis = _along_channels(x)
        if axis is None:
            return None
        view = np.moveaxis(x, axis, 0)
        at = int(rng.integers(view.shape[0]))
        view[at] = change(view[at])
        return x

    return plant


def _swapped_channels(x: Array) -> Array | None:
    axis = _along_channels(x)
    if axis is None:
        return None
    view = np.moveaxis(x, axis, 0)
    view[[0, -1]] = view[[-1, 0]]
    return x


def _copied_row(x: Array) -> Array | None:
    axis = next((i for i, size in enumerate(x.shape) if size > 1), None)
    if axis is None:
        return None
    view = np.moveaxis(x, axis, 0)
    view[-1] = view[0]
    return x


def _later_samples(x: Array) -> Array | None:
    """Be right for one sample alone, as a kernel is that forgets the stride of the others."""
    if x.ndim < 2 or x.shape[0] < 2 or x[0].size < 2:
        return None
    x[1:] = np.roll(x[1:].reshape(x.shape[0] - 1, -1), 1, 1).reshape(x[1:].shape)
    return x


def _column(to: int, by: int) -> Plant:
    """Have one column hold what another one does: edges of tiles."""

    def plant(x: Array, _: np.random.Generator) -> Array | None:
        if not x.ndim or x.shape[-1] < 2:
            return None
        x[..., to] = x[..., by]
        return x

    return plant


def _pairs(x: Array) -> Array | None:
    """Have odd columns hold what even ones do, as where a thread stores its first of two twice."""
    if not x.ndim or x.shape[-1] < 2:
        return None
    odd = x[..., 1::2]
    odd[...] = x[..., ::2][..., : odd.shape[-1]]
    return x


def _two_swapped(x: Array, rng: np.random.Generator) -> Array | None:
    """Swap two neighbours, in one place."""
    flat = x.reshape(-1)
    if flat.size < 2:
        return None
    at = int(rng.integers(flat.size - 1))
    flat[[at, at + 1]] = flat[[at + 1, at]]
    return flat.reshape(x.shape)


def _warps_swapped(x: Array) -> Array | None:
    """Exchange two neighbouring runs of 32 elements."""
    flat = x.reshape(-1)
    if flat.size < 2 * _WARP:
        return None
    flat[: 2 * _WARP] = np.roll(flat[: 2 * _WARP], _WARP)
    return flat.reshape(x.shape)


def _half_again(x: Array) -> Array | None:
    """Have the second half be the first, as where a block has the place of another."""
    flat = x.reshape(-1)
    if flat.size < 2:
        return None
    flat[flat.size - flat.size // 2 :] = flat[: flat.size // 2]
    return flat.reshape(x.shape)


def _rows_by(change: Callable[[Array], Array]) -> Plant:
    """Change one row, whichever."""

    def plant(x: Array, rng: np.random.Generator) -> Array | None:
        if x.ndim < 2 or not x.shape[-1]:
            return None
        rows = x.reshape(-1, x.shape[-1])
        at = int(rng.integers(len(rows)))
        rows[at] = change(rows[at])
        return rows.reshape(x.shape)

    return plant


def _decimals(x: Array) -> Array:
    """Round to a thousandth of the scale, as fixed point does."""
    step = 1e-3 * _scale(x) or 1.0
    return np.rint(x.astype(np.float64) / step) * step


def _only_finite(x: Array) -> Array | None:
    """Drop what is not finite, as ``fmax`` does."""
    return None if np.isfinite(x).all() else np.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)


def _some(share: float, change: Callable[[Array, float], Array]) -> Plant:
    def plant(x: Array, rng: np.random.Generator) -> Array:
        flat = x.reshape(-1)
        at = rng.choice(flat.size, max(1, int(flat.size * share)), replace=False)
        flat[at] = change(flat[at], _scale(x))
        return flat.reshape(x.shape)

    return plant


def _rows_of_tiles(x: Array) -> Array | None:
    """Have every eighth row hold what the one before does: the last one of a tile."""
    if x.ndim < 2 or x.shape[-2] < _ROWS:
        return None
    x[..., _ROWS - 1 :: _ROWS, :] = x[..., _ROWS - 2 :: _ROWS, :][..., : x.shape[-2] // _ROWS, :]
    return x


def _cut_off(x: Array) -> Array | None:
    """Round towards zero to sixteen bits, as who forgets to round does."""
    if x.size < _MANY:
        return None
    part, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.trunc(np.ldexp(part, _CUT_BITS)), exponent - _CUT_BITS)


def _greatest_of_a_row(x: Array, rng: np.random.Generator) -> Array | None:
    """Have the greatest element of one row be the second one of it."""
    if x.ndim < 2 or x.shape[-1] < 2:
        return None
    rows = x.reshape(-1, x.shape[-1])
    row = rows[int(rng.integers(len(rows)))]
    order = np.argsort(row)
    row[order[-1]] = row[order[-2]]
    return rows.reshape(x.shape)


def _stale_row(x: Array) -> Array | None:
    axis = next((i for i in reversed(range(x.ndim - 1)) if x.shape[i] > 1), None)
    if axis is None:
        return None
    view = np.moveaxis(x, axis, 0)
    view[-1] = view[-2]
    return x


def _tile(x: Array) -> Array | None:
    """Leave out the last tile of sixteen by sixteen, of the last matrix."""
    if x.ndim < 2 or max(x.shape[-2:]) <= _TILE:
        return None
    rows, columns = ((size - 1) // _TILE * _TILE for size in x.shape[-2:])
    x.reshape(-1, *x.shape[-2:])[-1, rows:, columns:] = 0
    return x


def _of_few_bits(x: Array) -> Array | None:
    """Round to the bits of TF32 and float16; a few numbers may happen to have no more."""
    if x.size < _MANY:
        return None
    part, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.rint(np.ldexp(part, _FEW_BITS)), exponent - _FEW_BITS)


def _small_to_zero(x: Array) -> Array:
    return np.where(np.abs(x) <= np.quantile(np.abs(x.astype(np.float64)), 0.25), 0, x)


def _least_negated(x: Array) -> Array | None:
    size = np.where(x == 0, np.inf, np.abs(x.astype(np.float64))).reshape(-1)
    flat, at = x.reshape(-1), int(size.argmin())
    flat[at] = -flat[at]
    return flat.reshape(x.shape)


def _bit_flipped(x: Array, rng: np.random.Generator) -> Array:
    """Flip the highest bit of an element's fraction: half of its power of two more or less."""
    flat = x.reshape(-1)
    at = int(rng.integers(flat.size))
    part, exponent = np.frexp(float(flat[at]))
    flat[at] = np.ldexp(part + (0.25 if abs(part) < 0.75 else -0.25) * np.sign(part), exponent)
    return flat.reshape(x.shape)


def _tail(x: Array) -> Array:
    flat = x.reshape(-1)
    flat[-max(1, flat.size // 8) :] = 0
    return flat.reshape(x.shape)


def _clipped(x: Array) -> Array:
    maximum = np.quantile(x.astype(np.float64), 0.9)
    return np.minimum(x, maximum.astype(x.dtype))


def _replaced(value: float) -> Plant:
    return _some(1e-9, lambda part, _: np.full_like(part, value))


def _noise(x: Array, rng: np.random.Generator) -> Array:
    return x + 0.01 * _scale(x) * rng.uniform(-1, 1, x.shape)


def _mean(x: Array) -> Array:
    return np.full_like(x, x.astype(np.float64).mean())


ANY: dict[str, Plant] = {
    "zeros": lambda x, _: np.zeros_like(x),
    "classes shifted": lambda x, _: _shifted(x),
    "rows permuted": lambda x, _: _rows(x),
    "transposed": lambda x, _: _transposed(x),
    "channels swapped": lambda x, _: _swapped_channels(x),
    "a row copied": lambda x, _: _copied_row(x),
    "reversed": lambda x, _: x[..., ::-1].copy() if x.ndim else None,
    "tail of zeros": lambda x, _: _tail(x),
    "a stale row": lambda x, _: _stale_row(x),
    "a tile of zeros": lambda x, _: _tile(x),
    "later samples shifted": lambda x, _: _later_samples(x),
    "first column again": _column(1, 0),
    "last column stale": _column(-1, -2),
    "first column stale": _column(0, 1),
    "odd columns again": lambda x, _: _pairs(x),
    "two neighbours swapped": _two_swapped,
    "two warps swapped": lambda x, _: _warps_swapped(x),
    "a channel shifted": _channel(lambda part: np.roll(part, 1, -1) if part.ndim else part),
    "last rows of tiles again": lambda x, _: _rows_of_tiles(x),
    "half of it again": lambda x, _: _half_again(x),
    "one pixel off": lambda x, _: np.roll(x, 1, -2) if x.ndim > 2 and x.shape[-2] > 1 else None,
}
FLOATING: dict[str, Plant] = {
    "negated": lambda x, _: -x,
    "times 1.05": lambda x, _: x * x.dtype.type(1.05),
    "sign of a channel": _channel(np.negative),
    "a channel times 1.02": _channel(lambda part: part * part.dtype.type(1.02)),
    "1 in 1000 off by 1 %": _some(1e-3, lambda part, scale: part + 0.01 * scale),
    "1 element off by 1 %": _some(1e-9, lambda part, scale: part + 0.01 * scale),
    "1 in 100000 off by 10 %": _some(1e-5, lambda part, scale: part - 0.1 * scale),
    "NaN": _replaced(float("nan")),
    "infinite": _replaced(float("inf")),
    "bias of 0.1 %": lambda x, _: x + 1e-3 * _scale(x),
    "noise of 1 %": _noise,
    "constant": lambda x, _: _mean(x),
    "clipped": lambda x, _: _clipped(x),
    "absolute": lambda x, _: np.abs(x),
    "of eleven bits": lambda x, _: _of_few_bits(x),
    "the smallest quarter zero": lambda x, _: _small_to_zero(x),
    "the least element negated": lambda x, _: _least_negated(x),
    "a bit flipped": _bit_flipped,
    "cut off to sixteen bits": lambda x, _: _cut_off(x),
    "a row without its greatest": _greatest_of_a_row,
    "a row times 1.01": _rows_by(lambda row: row * row.dtype.type(1.01)),
    "a row plus 0.5 %": _rows_by(lambda row: row + 5e-3 * _scale(row)),
    "a row's mean": _rows_by(_mean),
    "a row turned": _rows_by(lambda row: row[::-1].copy()),
    "times 1.0003": lambda x, _: x * x.dtype.type(1.0003),
    "rounded to 0.1 %": lambda x, _: _decimals(x),
    "of eight bits": lambda x, _: None if x.size < _MANY else x.astype(bfloat16),
    "no negative numbers": lambda x, _: np.maximum(x, 0),
    "finite": lambda x, _: _only_finite(x),
}
DISCRETE: dict[str, Plant] = {
    "plus 1": lambda x, _: ~x if x.dtype == bool else x + x.dtype.type(1),
    "1 element plus 1": _some(1e-9, lambda x, _: ~x if x.dtype == bool else x + x.dtype.type(1)),
    "minus 1 where it is even": lambda x, _: None if x.dtype == bool else x - (x % 2 == 0),
    "saturated": lambda x, _: None if x.dtype == bool else np.clip(x, 0, 127),
}
