"""Resizing and grids against onnxruntime."""

import pytest

from .case import Case, check
from .cases_resize import CASES


@pytest.mark.parametrize("case", CASES, ids=str)
def test_resize(case: Case, backend: str) -> None:
    check(case, backend)
