"""Attention against onnxruntime."""

import pytest

from .case import Case, check
from .cases_attention import CASES


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention(case: Case, backend: str) -> None:
    check(case, backend)
