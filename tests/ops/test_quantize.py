"""Quantization against onnxruntime."""

import pytest

from .case import Case, check
from .cases_quantize import CASES


@pytest.mark.parametrize("case", CASES, ids=str)
def test_quantize(case: Case, backend: str) -> None:
    check(case, backend)
