"""Classical models on the GPU: labels and sums of trees as numpy has them, others beside them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import tercet
from tercet.runtime.ir.types import Array

from ..kernels.ml_models import models, own_models

pytestmark = pytest.mark.gpu

MODELS = [pytest.param(proto, feeds, id=name) for name, proto, feeds in (*models(), *own_models())]


@pytest.mark.parametrize(("proto", "feeds"), MODELS)
def test_results_are_those_of_numpy(proto: ModelProto, feeds: dict[str, Array]) -> None:
    with tercet.load(proto) as host, tercet.load(proto, backend="cuda") as device:
        wanted, found = host.run(feeds), device.run(feeds)
    for name, data in found.items():
        if data.dtype.kind == "i":
            np.testing.assert_array_equal(data, wanted[name])
        np.testing.assert_allclose(data, wanted[name], rtol=1e-5, atol=2e-6)
