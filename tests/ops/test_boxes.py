"""Pooling over regions against onnxruntime."""

import pytest

from .case import Case, check
from .cases_boxes import CASES


@pytest.mark.parametrize("case", CASES, ids=str)
def test_boxes(case: Case, backend: str) -> None:
    check(case, backend)
