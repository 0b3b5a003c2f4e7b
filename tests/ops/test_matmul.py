"""Matrix products against onnxruntime and definitions."""

import pytest

from .case import Case, check
from .cases_matmul import CASES


@pytest.mark.parametrize("case", CASES, ids=str)
def test_matmul(case: Case, backend: str) -> None:
    check(case, backend)
