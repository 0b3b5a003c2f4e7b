"""Sines and cosines of 16-bit floats, all that there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.runtime.ir.dtypes import DType, bfloat16, float16

from .emulator import needs_compiler
from .samples import results_of, sample

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend


@needs_compiler
@pytest.mark.parametrize(("dtype", "digits"), [(float16, 10), (bfloat16, 7)], ids=str)
@pytest.mark.parametrize("kind", ["Sin", "Cos"])
def test_every_number(kind: str, dtype: DType, digits: int, emulated: CudaBackend) -> None:
    """Within a unit in the last place, whether or not they are far from 0; NaN of infinities."""
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    (found,) = results_of(sample(kind, [x]), [emulated])
    with np.errstate(invalid="ignore"):
        exact = {"Sin": np.sin, "Cos": np.cos}[kind](x.astype(np.float64))
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=2.0**-digits, atol=1e-6)
