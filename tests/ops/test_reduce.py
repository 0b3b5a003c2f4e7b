"""Reductions against their definitions."""

import pytest

from .case import Case, check
from .cases_reduce import CASES


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reduce(case: Case, backend: str) -> None:
    check(case, backend)
