"""Signals against onnxruntime."""

import pytest

from .case import Case, check
from .cases_signal import CASES


@pytest.mark.parametrize("case", CASES, ids=str)
def test_signal(case: Case, backend: str) -> None:
    check(case, backend)
