"""Moving, picking and placing elements, against onnxruntime."""

import pytest

from .case import Case, check
from .cases_shape import CASES


@pytest.mark.parametrize("case", CASES, ids=str)
def test_shape(case: Case, backend: str) -> None:
    check(case, backend)
