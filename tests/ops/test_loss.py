"""Losses against onnxruntime."""

import pytest

from .case import Case, check
from .cases_loss import CASES


@pytest.mark.parametrize("case", CASES, ids=str)
def test_loss(case: Case, backend: str) -> None:
    check(case, backend)
