"""1x1 convolutions behind each other as one kernel, and windows of few pixels, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.backends.cuda.conv.back_to_back import Form
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32
from tercet.runtime.session.model import Model

from ..kernels.samples import OPTIONS, results_of
from ..kernels.test_back_to_back import CASES, WIDE_CASES, force_form, unit
from ..kernels.test_image_halves import force

pytestmark = pytest.mark.gpu

#: Relative L2 distance that nothing here may exceed.
BOUND = {float16: 1e-3, bfloat16: 8e-3, float32: 1e-6}


@pytest.mark.parametrize("kind", ["all", "plain", "in halves"])
@pytest.mark.parametrize(
    ("dtype", "shape", "form"),
    [
        *((dtype, *case) for dtype in (float16, bfloat16) for case in CASES),
        *((float32, *case) for case in WIDE_CASES),
    ],
    ids=str,
)
def test_units(
    dtype: DType,
    shape: tuple[int, ...],
    form: Form,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    force_form(monkeypatch, form)
    plain = kind == "plain"
    goes_on = kind == "in halves" and dtype == float32 and shape[-1] % 64 == 0
    if goes_on:
        force(monkeypatch, "w64x32")
    sample = unit(shape, dtype, adds=not plain, bias=not plain, reads=not plain, goes_on=goes_on)
    with Model(sample.graph, open_backends("cuda", OPTIONS), OPTIONS, evaluate) as model:
        runs = [[np.asarray(a) for a in model.run(sample.feeds).values()] for _ in range(2)]
        assert any("back_to_back" in row.kernel for row in model.prepare().rows)
    wants = results_of(sample, open_backends("numpy", OPTIONS))
    for got, again, want in zip(*runs, wants, strict=True):
        np.testing.assert_array_equal(got, again)
        exact = want.astype(np.float64)
        distance = np.linalg.norm(got.astype(np.float64) - exact)
        assert distance <= BOUND[dtype] * np.linalg.norm(exact)
