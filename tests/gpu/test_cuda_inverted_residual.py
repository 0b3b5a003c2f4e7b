"""Inverted residuals on a GPU: every case in every form, also by clusters, against float64."""

from __future__ import annotations

from typing import Any

import pytest

from tercet.backends import open_backends
from tercet.backends.cuda.conv.residual_forms import Form
from tercet.backends.cuda.conv.residual_patches import PatchForm
from tercet.runtime.ir.dtypes import DType, float16, float32

from ..kernels import test_residual_patches as patches
from ..kernels.samples import OPTIONS
from ..kernels.test_inverted_residual import ANY, CASES, FORMS, LARGE, always, check

pytestmark = pytest.mark.gpu


#: Forms that leave room for any case in float32.
SMALL = [form for form in (ANY, LARGE, *FORMS) if form.rows * form.columns * form.chunk <= 49 * 32]


@pytest.mark.parametrize(
    ("form", "dtype"),
    [*((form, float16) for form in (ANY, LARGE, *FORMS)), *((form, float32) for form in SMALL)],
    ids=str,
)
@pytest.mark.parametrize("case", CASES)
def test_forms(case: str, form: Form, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    if dtype == float32 and case == "first layer of few columns":
        pytest.skip("first layers are fused in 16 bits, and this case has no projection")
    always(form, monkeypatch)
    backends: Any = open_backends("cuda", OPTIONS)
    check(CASES[case], dtype, backends[0])


@pytest.mark.parametrize("form", patches.FORMS, ids=str)
@pytest.mark.parametrize("case", patches.CASES)
def test_patches(case: str, form: PatchForm, monkeypatch: pytest.MonkeyPatch) -> None:
    patches.always(form, monkeypatch)
    backends: Any = open_backends("cuda", OPTIONS)
    check(patches.CASES[case], float16, backends[0], patches.ENTRY)
