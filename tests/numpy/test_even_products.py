"""Equal rows and equal columns of a product give equal results, on every kind of processor."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest

from tercet.backends.numpy.numerics import blas, margins, products

#: What numpy's OpenBLAS can take itself to run on; each has its own kernels.
CORES = ("Haswell", "Zen", "SkylakeX", "Nehalem")
#: Instructions without which a processor cannot run such kernels, as numpy calls them.
NEEDS = {"Haswell": "AVX2", "Zen": "AVX2", "SkylakeX": "AVX512_SKX"}
SIZES = (1, 2, 3, 5, 7, 12, 16, 24, 33, 49, 100, 196, 250, 1000)
DEPTHS = (1, 3, 8, 27, 64, 147, 385, 1000)
MAX = 1_500_000
#: Sizes [m, k, n] around those that BLAS packs as a whole.
PACKED = ((13, 20, 321), (12, 330, 641), (647, 20, 329), (12_289, 3, 20), (20, 3, 12_289))


def laid(data: np.ndarray, order: str) -> np.ndarray:
    return np.asarray(data, order=order)  # pyright: ignore[reportArgumentType, reportCallIssue]


def uneven(dtype: str, maximum: int = MAX) -> list[str]:
    """Return which products are not even."""
    random = np.random.default_rng(7)
    found: list[str] = []
    sizes = (size for size in product(SIZES, DEPTHS, SIZES) if prod(size) <= maximum)
    for m, k, n in (*sizes, *PACKED):
        a = random.standard_normal((m, k)).astype(dtype)
        b = random.standard_normal((k, n)).astype(dtype)
        for order in ("CC", "CF", "FC"):
            left, right = (laid(x, o) for x, o in zip((a, b), order, strict=True))
            rows = products.multiply(laid(np.repeat(a[:1], m, 0), order[0]), right)
            columns = products.multiply(left, laid(np.repeat(b[:, :1], n, 1), order[1]))
            if (rows != rows[:1]).any() or (columns != columns[:, :1]).any():
                found.append(f"{dtype} {m}x{k}x{n} {order}")
    return found


@pytest.mark.parametrize("core", CORES)
def test_equal_rows_and_columns_give_equal_results(core: str) -> None:
    if blas.threads() is None:
        pytest.skip("numpy's BLAS is not OpenBLAS, which can be told what it runs on")
    features: Any = import_module("numpy._core._multiarray_umath").__cpu_features__
    if core in NEEDS and not features.get(NEEDS[core]):
        pytest.skip(f"this processor has no {NEEDS[core]}, which kernels for {core} are made of")
    environment = {"OPENBLAS_CORETYPE": core, "OPENBLAS_NUM_THREADS": "2"}
    child = subprocess.run(
        [sys.executable, __file__], env=os.environ | environment, capture_output=True, text=True
    )
    assert (child.returncode, child.stdout, child.stderr) == (0, "", "")


@pytest.mark.parametrize("is_fixed", [False, True])
@pytest.mark.parametrize("stacks", [(), (0,), (3,), (2, 1)])
@pytest.mark.parametrize(
    ("m", "k", "n"), [(2, 5, 9), (7, 4, 40), (30, 8, 7), (50, 9, 700), (700, 9, 50), (64, 20, 700)]
)
def test_products_between_margins(
    m: int, k: int, n: int, stacks: tuple[int, ...], is_fixed: bool
) -> None:
    random = np.random.default_rng(8)
    a = random.standard_normal((*stacks, m, k)).astype("float32")
    b = random.standard_normal((k, n) if is_fixed else (*stacks, k, n)).astype("float32")
    out = np.full((*stacks, m, n), np.nan, "float32")
    call = margins.recorded(a, b, out, is_fixed=is_fixed)
    for _ in range(2):
        call()
        np.testing.assert_allclose(out, a.astype("float64") @ b, rtol=1e-5, atol=1e-5)
        a *= 2


if __name__ == "__main__":
    with blas.one_thread():
        for found in (*uneven("float32"), *uneven("float64", MAX // 3)):
            print(found)
