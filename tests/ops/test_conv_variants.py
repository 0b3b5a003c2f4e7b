"""Transposed and other convolutions against onnxruntime."""

import pytest

from .case import Case, check
from .cases_conv_variants import CASES


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conv_variants(case: Case, backend: str) -> None:
    check(case, backend)
