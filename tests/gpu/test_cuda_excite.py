"""Squeeze-and-excite in two kernels, against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.backends.cuda.conv import excite
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType
from tercet.runtime.session.model import Model

from ..kernels.samples import OPTIONS
from ..kernels.test_excite import BEHIND, BOUND, CASES, WIDE, Case, graph_of, relative_error

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize(
    "case",
    [*CASES.values(), *BEHIND.values(), WIDE],
    ids=[*CASES, *(f"behind {each}" for each in BEHIND), "wide"],
)
def test_results(case: Case, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(excite, "LIGHT", case.light)
    graph, feeds = graph_of(case, dtype, dtype)
    with Model(graph, open_backends("cuda", OPTIONS), OPTIONS, evaluate) as model:
        got, again = (np.asarray(model.run(feeds)["y"]) for _ in range(2))
        assert any("excite" in row.kernel for row in model.prepare().rows)
    np.testing.assert_array_equal(got, again)
    assert relative_error(got, case, dtype) <= BOUND[dtype]
