"""Epilogues that store two results, on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.runtime.ir.dtypes import DType

from ..kernels.samples import OPTIONS, compare, results_of
from ..kernels.test_second_results import CASES, DTYPES, Case, filtered, sample_of, wide

pytestmark = pytest.mark.gpu


@DTYPES
@pytest.mark.parametrize("case", [*CASES, wide, filtered], ids=lambda case: case.__name__)
def test_results(case: Case, dtype: DType) -> None:
    sample = sample_of(case, dtype)
    compare(sample, *open_backends("cuda", OPTIONS))
    first, again = (results_of(sample, open_backends("cuda", OPTIONS)) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)
