"""Which steps keep BLAS to one thread: those with products that it might split."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tercet
from tercet.backends.numpy.numerics import blas


@pytest.mark.parametrize(("rows", "is_limited"), [(1, False), (500, True)])
@pytest.mark.parametrize("ends", ["", "y = Relu(m)"])
def test_products_too_small_to_be_split_leave_blas_alone(
    rows: int, is_limited: bool, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = "m" if ends else "y"
    text = f"""
        <ir_version: 10, opset_import: ["": 21]>
        product (float[n, 20] x, float[20, 3] w) => (float[n, 3] y) {{
            {result} = MatMul(x, w)
            {ends}
        }}
    """
    entered: list[blas.one_thread] = []
    enter = blas.one_thread.__enter__
    monkeypatch.setattr(
        blas.one_thread, "__enter__", lambda self: (entered.append(self), enter(self))[1]
    )
    with tercet.load(onnx.parser.parse_model(text)) as model:
        x, w = np.ones((rows, 20), np.float32), np.ones((20, 3), np.float32)
        model.run({"x": x, "w": w})
        entered.clear()
        assert model.run({"x": x, "w": w})["y"].tolist() == [[20] * 3] * rows
    assert bool(entered) == is_limited
