"""Complex numbers of TensorFlow, as pairs of real and imaginary part along one more, last axis.

tf2onnx writes operators of complex numbers as they are, and lets those of ONNX read their results.
`NodeBuilder.as_pairs` marks a result that has the additional axis; what reads it is expanded by the
function that `complex_operator` declares for its name, and is an error if there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np

from ....runtime.ir import dtypes
from ....runtime.ir.types import Array
from .builder import NodeBuilder
from .catalogue import COMPLEX
from .declaration import Index, Int32, Kind, T, contrib
from .tensorflow_names import Function, operator

#: Pairs, or a constant of complex numbers.
Pairs = Annotated[str, Kind("V", dtypes.FLOATS | dtypes.COMPLEX)]
_PARTS = {dtypes.complex64: dtypes.float32, dtypes.complex128: dtypes.float64}


def complex_operator(name: str) -> Callable[[Function], Function]:
    """Declare what an operator does with complex numbers."""
    return contrib(name, domain=COMPLEX)


# ── from and to real numbers ─────────────────────────────────────────────────────────────────────


@operator("Complex")
def complex_(b: NodeBuilder, real: T, imag: T) -> str:
    """Return complex numbers of these parts."""
    last = b.ints(-1)
    return b.as_pairs(b.Concat(b.Unsqueeze(real, last), b.Unsqueeze(imag, last), axis=-1))


@complex_operator("Real")
def real(b: NodeBuilder, x: Pairs) -> str:
    """Return real parts."""
    return _part(b, _pairs(b, x), 0)


@complex_operator("Imag")
def imag(b: NodeBuilder, x: Pairs) -> str:
    """Return imaginary parts."""
    return _part(b, _pairs(b, x), 1)


@complex_operator("ComplexAbs")
def complex_abs(b: NodeBuilder, x: Pairs) -> str:
    """Return magnitudes."""
    return b.ReduceL2(_pairs(b, x), b.ints(-1), keepdims=0)


@complex_operator("Angle")
def angle(b: NodeBuilder, x: Pairs) -> str:
    """Return arguments, within (-pi, pi]."""
    pairs = _pairs(b, x)
    re, im, zero = _part(b, pairs, 0), _part(b, pairs, 1), b.number(0, pairs)
    half_turn = b.Where(b.Less(im, zero), b.number(-np.pi, pairs), b.number(np.pi, pairs))
    is_left = b.Less(re, zero)
    found = b.Add(b.Atan(b.Div(im, re)), b.Where(is_left, half_turn, zero))
    return b.Where(b.And(b.Equal(re, zero), b.Equal(im, zero)), zero, found)


@complex_operator("Conj")
def conj(b: NodeBuilder, x: Pairs) -> str:
    """Return conjugates."""
    pairs = _pairs(b, x)
    return b.as_pairs(_conjugates(b, pairs))


# ── Fourier transforms ───────────────────────────────────────────────────────────────────────────


@operator("RFFT")
def rfft(b: NodeBuilder, x: T, fft_length: Int32) -> str:
    """Return one-sided transforms of the last axis."""
    return _of_real(b, x, fft_length, 1)


@operator("RFFT2D")
def rfft_2d(b: NodeBuilder, x: T, fft_length: Int32) -> str:
    """Return transforms of the last two axes, one-sided along the last."""
    return _of_real(b, x, fft_length, 2)


@operator("RFFT3D")
def rfft_3d(b: NodeBuilder, x: T, fft_length: Int32) -> str:
    """Return transforms of the last three axes, one-sided along the last."""
    return _of_real(b, x, fft_length, 3)


@complex_operator("IRFFT")
def irfft(b: NodeBuilder, x: Pairs, fft_length: Int32) -> str:
    """Return the real signals of one-sided transforms of the last axis."""
    return _to_real(b, x, fft_length, 1)


@complex_operator("IRFFT2D")
def irfft_2d(b: NodeBuilder, x: Pairs, fft_length: Int32) -> str:
    """Return the real signals of transforms that are one-sided along the last of two axes."""
    return _to_real(b, x, fft_length, 2)


@complex_operator("IRFFT3D")
def irfft_3d(b: NodeBuilder, x: Pairs, fft_length: Int32) -> str:
    """Return the real signals of transforms that are one-sided along the last of three axes."""
    return _to_real(b, x, fft_length, 3)


def _declare(name: str, axes: int, *, inverse: bool) -> None:
    """Declare transforms of complex numbers over the last axes."""

    def transform(b: NodeBuilder, x: Pairs) -> str:
        found = _pairs(b, x)
        for axis in range(axes):
            found = b.DFT(found, None, _axis(b, axis), inverse=inverse)
        return b.as_pairs(found)

    complex_operator(name)(transform)


for _count, _suffix in ((1, ""), (2, "2D"), (3, "3D")):
    _declare(f"FFT{_suffix}", _count, inverse=False)
    _declare(f"IFFT{_suffix}", _count, inverse=True)


def _of_real(b: NodeBuilder, x: str, fft_length: str, axes: int) -> str:
    sizes = _sizes(b, fft_length, axes)
    found = b.DFT(b.Unsqueeze(x, b.ints(-1)), sizes[-1], _axis(b, 0), onesided=1)
    for axis in range(1, axes):
        found = b.DFT(found, sizes[-1 - axis], _axis(b, axis))
    return b.as_pairs(found)


def _to_real(b: NodeBuilder, x: str, fft_length: str, axes: int) -> str:
    found, sizes = _pairs(b, x), _sizes(b, fft_length, axes)
    for axis in range(axes - 1, 0, -1):
        found = b.DFT(found, sizes[-1 - axis], _axis(b, axis), inverse=1)
    return b.Squeeze(b.DFT(found, sizes[-1], _axis(b, 0), inverse=1, onesided=1), b.ints(-1))


def _sizes(b: NodeBuilder, fft_length: str, axes: int) -> list[str]:
    """Return the size along each axis as a scalar."""
    known = b.cast(fft_length, dtypes.int64)
    return [b.Squeeze(b.slice(known, 0, at, at + 1), b.ints(0)) for at in range(axes)]


def _axis(b: NodeBuilder, place: int) -> str:
    """Return the axis at a place counted from the last, in front of that of parts."""
    return b.constant(np.array(-2 - place, np.int64))


# ── arithmetic ───────────────────────────────────────────────────────────────────────────────────


@complex_operator("Add")
def add(b: NodeBuilder, x: Pairs, y: Pairs) -> str:
    """Return sums."""
    return b.as_pairs(b.Add(_pairs(b, x), _pairs(b, y)))


@complex_operator("Sub")
def sub(b: NodeBuilder, x: Pairs, y: Pairs) -> str:
    """Return differences."""
    return b.as_pairs(b.Sub(_pairs(b, x), _pairs(b, y)))


@complex_operator("Neg")
def neg(b: NodeBuilder, x: Pairs) -> str:
    """Return negated numbers."""
    return b.as_pairs(b.Neg(_pairs(b, x)))


@complex_operator("Mul")
def mul(b: NodeBuilder, x: Pairs, y: Pairs) -> str:
    """Return products."""
    return b.as_pairs(_product(b, _pairs(b, x), _pairs(b, y)))


@complex_operator("Div")
def div(b: NodeBuilder, x: Pairs, y: Pairs) -> str:
    """Return quotients."""
    left, right = _pairs(b, x), _pairs(b, y)
    scale = b.ReduceSumSquare(right, b.ints(-1), keepdims=1)
    return b.as_pairs(b.Div(_product(b, left, _conjugates(b, right)), scale))


def _product(b: NodeBuilder, x: str, y: str) -> str:
    (xr, xi), (yr, yi) = (b.several("Split", 2, each, axis=-1, num_outputs=2) for each in (x, y))
    re = b.Sub(b.Mul(xr, yr), b.Mul(xi, yi))
    return b.Concat(re, b.Add(b.Mul(xr, yi), b.Mul(xi, yr)), axis=-1)


def _conjugates(b: NodeBuilder, x: str) -> str:
    return b.Mul(x, b.constant(np.array([1, -1], b.dtype(x))))


# ── moves ────────────────────────────────────────────────────────────────────────────────────────


@complex_operator("Identity")
def identity(b: NodeBuilder, x: Pairs) -> str:
    """Return the same numbers."""
    return b.as_pairs(b.Identity(_pairs(b, x)))


@complex_operator("Transpose")
def transpose(b: NodeBuilder, x: Pairs, *, perm: tuple[int, ...] | None = None) -> str:
    """Return numbers with permuted axes."""
    pairs = _pairs(b, x)
    rank = b.rank(pairs) - 1
    order = tuple(range(rank))[::-1] if perm is None else perm
    return b.as_pairs(b.transpose(pairs, *order, rank))


@complex_operator("Slice")
def slice_(
    b: NodeBuilder,
    x: Pairs,
    starts: Index,
    ends: Index,
    axes: Index | None = None,
    steps: Index | None = None,
) -> str:
    """Return a part along some axes."""
    pairs = _pairs(b, x)
    begin, end, step = (
        None if each is None else b.cast(each, dtypes.int64) for each in (starts, ends, steps)
    )
    known = None if axes is None else _axes(b, pairs, axes)
    return b.as_pairs(b.Slice(pairs, begin, end, known, step))


@complex_operator("Reshape")
def reshape(b: NodeBuilder, x: Pairs, shape: Index, *, allowzero: int = 0) -> str:
    """Return numbers in another shape."""
    sizes = b.Concat(b.cast(shape, dtypes.int64), b.ints(2), axis=0)
    return b.as_pairs(b.Reshape(_pairs(b, x), sizes, allowzero=allowzero))


@complex_operator("Squeeze")
def squeeze(b: NodeBuilder, x: Pairs, axes: Index) -> str:
    """Return numbers without some axes of size 1."""
    pairs = _pairs(b, x)
    return b.as_pairs(b.Squeeze(pairs, _axes(b, pairs, axes)))


@complex_operator("Unsqueeze")
def unsqueeze(b: NodeBuilder, x: Pairs, axes: Index) -> str:
    """Return numbers with axes of size 1."""
    pairs = _pairs(b, x)
    return b.as_pairs(b.Unsqueeze(pairs, _axes(b, pairs, axes, new=True)))


@complex_operator("Concat")
def concat(b: NodeBuilder, *parts: Pairs, axis: int) -> str:
    """Return several tensors along an axis."""
    joined = [_pairs(b, each) for each in parts]
    return b.as_pairs(b.Concat(*joined, axis=axis if axis >= 0 else axis - 1))


def _axes(b: NodeBuilder, pairs: str, axes: str, *, new: bool = False) -> str:
    """Return axes of complex numbers as axes of pairs, from the front."""
    value = b.value(axes)
    if value is None:
        raise b.unsupported("axes of complex numbers that are computed", "make them constants")
    rank = b.rank(pairs) - 1 + (value.size if new else 0)
    return b.ints(*(int(each) % rank for each in value.ravel()))


# ── pairs ────────────────────────────────────────────────────────────────────────────────────────


def _pairs(b: NodeBuilder, x: str) -> str:
    """Return pairs, also of a constant."""
    parts = _PARTS.get(b.dtype(x))
    if parts is None:
        return x
    value = b.value(x)
    if value is None:
        raise b.unsupported(f"'{x}' is {b.type(x)}", "give its parts as two inputs")
    return b.constant(_split(value).astype(parts, copy=False))


def _split(value: Array) -> Array:
    return np.stack([value.real, value.imag], -1)


def _part(b: NodeBuilder, pairs: str, at: int) -> str:
    return b.Gather(pairs, b.constant(np.array(at)), axis=-1)
