"""Products with packed weights, of every number of bits, kind of zero point and count of rows."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tercet.runtime.ir.dtypes import bfloat16, float16, float32
from tercet.runtime.ir.types import Array

from .dry import DRAWN, normal
from .samples import Sample, sample

DOMAIN = "com.microsoft"


def _bytes(*shape: int) -> Array:
    drawn = np.random.default_rng(shape).integers(0, 256, min(prod(shape), DRAWN), np.uint8)
    return np.resize(drawn, shape)


def nbits(
    rows: int,
    k: int,
    n: int,
    bits: int,
    block: int,
    *,
    zeros: str = "",
    grouped: bool = False,
    bias: bool = False,
    dtype: Any = float32,
) -> Sample:
    """Return a MatMulNBits; `zeros` is "packed", "floats", or "" for none."""
    blocks = -(-k // block)
    inputs = [
        normal(rows, k, dtype=dtype),
        _bytes(n, blocks, block * bits // 8),
        normal(n * blocks, dtype=dtype, scale=1 / 8),
        {
            "": None,
            "packed": _bytes(n * -(-blocks * bits // 8)),
            "floats": normal(n * blocks, dtype=dtype),
        }[zeros],
        (np.arange(k) * 7 % blocks).astype(np.int32) if grouped else None,
        normal(n, dtype=dtype) if bias else None,
    ]
    sizes = {"K": k, "N": n, "bits": bits, "block_size": block}
    return sample("MatMulNBits", inputs, (1, 2, 3, 4, 5), domain=DOMAIN, **sizes)


def bnb4(
    rows: int, k: int, n: int, kind: int, *, transposed: int = 1, dtype: Any = float32
) -> Sample:
    """Return a MatMulBnb4."""
    inputs = [
        normal(rows, k if transposed else n, dtype=dtype),
        _bytes(-(-k * n // 2)),
        normal(-(-k * n // 16), dtype=dtype),
    ]
    sizes = {"K": k, "N": n, "block_size": 16, "quant_type": kind, "transB": transposed}
    return sample("MatMulBnb4", inputs, (1, 2), domain=DOMAIN, **sizes)


def samples() -> list[Sample]:
    """Return products with packed weights."""
    return [
        nbits(1, 64, 9, 4, 32),
        nbits(2, 70, 9, 4, 16, zeros="packed", bias=True),
        nbits(3, 50, 5, 2, 16, zeros="packed", dtype=float16),
        nbits(11, 40, 6, 8, 16, zeros="packed", dtype=bfloat16),
        nbits(1, 48, 4, 4, 16, zeros="floats", grouped=True),
        nbits(4, 33, 3, 2, 32, zeros="floats", bias=True, dtype=float16),
        nbits(9, 33, 3, 8, 32),
        nbits(1, 600, 20, 4, 32, zeros="packed", dtype=float16),
        nbits(2, 300, 35, 4, 128, zeros="floats", bias=True, dtype=float16),
        nbits(1, 600, 20, 4, 16, zeros="packed", dtype=float16),
        nbits(8, 512, 17, 4, 16, dtype=float16),
        nbits(1, 1024, 20, 4, 32, dtype=float16),
        nbits(1, 2048, 35, 4, 128, zeros="packed", bias=True, dtype=bfloat16),
        nbits(1, 2048, 17, 2, 32, zeros="floats", dtype=float16),
        nbits(3, 300, 35, 4, 16, zeros="floats", dtype=bfloat16),
        nbits(1, 70, 9, 2, 16, dtype=float16),
        nbits(5, 520, 17, 2, 32, zeros="packed", dtype=float16),
        nbits(2, 256, 9, 2, 32),
        nbits(16, 128, 8, 4, 64, dtype=bfloat16),
        nbits(5, 520, 17, 4, 256, zeros="packed"),
        nbits(8, 100, 12, 8, 16, zeros="packed", dtype=float16),
        nbits(1, 129, 9, 8, 64, zeros="floats", dtype=bfloat16),
        nbits(4, 200, 33, 8, 128, bias=True),
        nbits(3, 300, 9, 2, 64, zeros="packed", dtype=float16),
        nbits(1, 512, 9, 2, 128, zeros="floats"),
        nbits(2, 64, 8460, 4, 32, zeros="packed", dtype=float16),  # blocks of few warps
        nbits(40, 96, 24, 4, 32, zeros="packed", bias=True, dtype=float16),
        nbits(25, 70, 9, 8, 16, dtype=bfloat16),
        nbits(33, 70, 12, 2, 16, zeros="floats"),
        nbits(30, 64, 17, 4, 16, zeros="packed"),
        *(bnb4(3, 33, 5, kind) for kind in (0, 1)),
        *(bnb4(1, 32, 6, kind, transposed=0, dtype=float16) for kind in (0, 1)),
    ]
