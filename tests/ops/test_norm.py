"""Normalizations against onnxruntime and definitions."""

import pytest

from .case import Case, check
from .cases_norm import CASES


@pytest.mark.parametrize("case", CASES, ids=str)
def test_norm(case: Case, backend: str) -> None:
    check(case, backend)
