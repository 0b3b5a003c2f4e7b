"""Elementwise operators against their definitions."""

import pytest

from .case import Case, check
from .cases_elementwise import CASES


@pytest.mark.parametrize("case", CASES, ids=str)
def test_elementwise(case: Case, backend: str) -> None:
    check(case, backend)
