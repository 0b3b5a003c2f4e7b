"""Recurrent layers against onnxruntime."""

import pytest

from .case import Case, check
from .cases_recurrent import CASES


@pytest.mark.parametrize("case", CASES, ids=str)
def test_recurrent(case: Case, backend: str) -> None:
    check(case, backend)
