"""Convolutions against onnxruntime."""

import pytest

from .case import Case, check
from .cases_conv import CASES


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conv(case: Case, backend: str) -> None:
    check(case, backend)
