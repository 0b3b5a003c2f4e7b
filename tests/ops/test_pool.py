"""Poolings against onnxruntime."""

import pytest

from .case import Case, check
from .cases_pool import CASES


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pool(case: Case, backend: str) -> None:
    check(case, backend)
