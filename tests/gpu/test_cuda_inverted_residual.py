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


#: In float32 a first layer stays apart, and without a projection nothing is left to be fused.
PROJECTED = [name for name, case in CASES.items() if case.windows == (1, 1) or case.filters]


@pytest.mark.parametrize(
    ("case", "form", "dtype"),
    [
        *((case, form, float16) for case in CASES for form in (ANY, LARGE, *FORMS)),
        *((case, form, float32) for case in PROJECTED for form in SMALL),
    ],
    ids=str,
)
def test_forms(case: str, form: Form, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    always(form, monkeypatch)
    backends: Any = open_backends("cuda", OPTIONS)
    check(CASES[case], dtype, backends[0])


@pytest.mark.parametrize("form", patches.FORMS, ids=str)
@pytest.mark.parametrize("case", patches.CASES)
def test_patches(case: str, form: PatchForm, monkeypatch: pytest.MonkeyPatch) -> None:
    patches.always(form, monkeypatch)
    backends: Any = open_backends("cuda", OPTIONS)
    check(patches.CASES[case], float16, backends[0], patches.ENTRY)
