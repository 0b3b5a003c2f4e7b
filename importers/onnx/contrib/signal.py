"""Real Fourier transforms and complex products."""

from __future__ import annotations

import numpy as np

from .builder import NodeBuilder
from .declaration import T, contrib


@contrib("Rfft")
def rfft(
    b: NodeBuilder, x: T, *, normalized: int = 0, onesided: int = 1, signal_ndim: int = 1
) -> str:
    """One-sided Fourier transform of the last axis of real data."""
    if normalized or not onesided or signal_ndim != 1:
        raise b.unsupported(
            f"normalized={normalized}, onesided={onesided}, signal_ndim={signal_ndim}",
            "export it as DFT of ONNX",
        )
    complex_ = b.Unsqueeze(x, b.ints(-1))
    return b.DFT(complex_, None, b.constant(np.array(-2, np.int64)), onesided=1)


@contrib("ComplexMul")
def complex_mul(b: NodeBuilder, x: T, y: T) -> str:
    """Products of complex numbers stored as pairs along the last axis."""
    return _complex_product(b, x, y, 1)


@contrib("ComplexMulConj")
def complex_mul_conj(b: NodeBuilder, x: T, y: T) -> str:
    """ComplexMul with the second operand conjugated."""
    return _complex_product(b, x, y, -1)


def _complex_product(b: NodeBuilder, x: str, y: str, sign: int) -> str:
    for name, each in (("A", x), ("B", y)):
        if b.dim(each, -1) not in (2, None):
            raise b.error(f"{name} is {b.type(each)}; expected a last axis of 2")
    (xr, xi), (yr, yi) = (b.several("Split", 2, each, axis=-1, num_outputs=2) for each in (x, y))
    if sign < 0:
        yi = b.Neg(yi)
    real = b.Sub(b.Mul(xr, yr), b.Mul(xi, yi))
    return b.Concat(real, b.Add(b.Mul(xr, yi), b.Mul(xi, yr)), axis=-1)
