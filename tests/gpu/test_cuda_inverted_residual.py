"""Inverted residuals on a GPU: every case in every form, also by clusters, against float64."""

from __future__ import annotations

from typing import Any

import pytest

from tercet.backends import open_backends
from tercet.backends.cuda.conv.inverted_residual import Form
from tercet.runtime.ir.dtypes import float16

from ..kernels.samples import OPTIONS
from ..kernels.test_inverted_residual import ANY, CASES, FORMS, always, check

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("form", [ANY, *FORMS], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_forms(case: str, form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    always(form, monkeypatch)
    backends: Any = open_backends("cuda", OPTIONS)
    check(CASES[case], float16, backends[0])
