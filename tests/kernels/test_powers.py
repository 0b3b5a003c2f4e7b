"""Powers whose exponents are frequent: products and roots, equal to `pow` at the ends as well."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.recipe.targets import H200
from tercet.runtime.ir.dtypes import DType, float16, float32, float64

from .cubins import OptimizedPtxCompiler
from .dry import launches, planned
from .emulator import needs_compiler
from .samples import results_of, sample

if TYPE_CHECKING:
    from pathlib import Path

    from tercet.backends.cuda.backend import CudaBackend

NUMBERS = [-np.inf, -300.0, -1.5, -0.0, 0.0, 1e-3, 0.7, 2.0, 100.0, np.inf, np.nan]


@needs_compiler
@pytest.mark.parametrize("dtype", [float16, float32, float64], ids=lambda each: each.name)
def test_powers(dtype: DType, emulated: CudaBackend) -> None:
    exponents = [2.0, 3.0, 4.0, 5.0, 9.0, -1.0, 0.5, -0.5, 1.5]
    x, y = (each.astype(dtype) for each in np.meshgrid(NUMBERS, exponents))
    with np.errstate(all="ignore"):
        wanted = np.power(x.astype(float64), y.astype(float64)).astype(dtype).astype(float64)
    (found,) = results_of(sample("Pow", [x, y]), [emulated])
    error = {float16: 1e-3, float32: 4e-7, float64: 1e-15}[dtype]
    np.testing.assert_allclose(found.astype(float64), wanted, rtol=error)
    assert (np.signbit(found) == np.signbit(wanted))[wanted == 0].all()


@needs_compiler
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float64])
def test_exponents_that_float_does_not_have(dtype: type, emulated: CudaBackend) -> None:
    x, y = np.array([-1, -1, 2], np.float32), np.array([2**24 + 1, 2**24, 3], dtype)
    (found,) = results_of(sample("Pow", [x, y]), [emulated])
    np.testing.assert_array_equal(found, np.array([-1, 1, 8], np.float32))


@pytest.mark.parametrize(
    ("exponent", "short"), [(2.0, True), (0.5, True), (9.0, True), (1.5, False)]
)
def test_constant_exponents_need_no_logarithm(exponent: float, short: bool, tmp_path: Path) -> None:
    """A power takes a logarithm and an exponential: a hundred instructions."""
    graph = sample("Pow", [np.ones(1024, np.float32), np.float32(exponent)], (1,)).graph
    (launch,) = launches(planned(graph))
    ptx = OptimizedPtxCompiler(H200, tmp_path).code(launch.source).decode()
    assert ("cvt.rni" not in ptx) is short
