"""Texts of numbers: runtimes write as many digits as they like, but only of the same number."""

from __future__ import annotations

import numpy as np
import pytest

import tercet as api
from tercet.importers.onnx import load
from tercet.runtime.ir.dtypes import string
from tercet.tools.verdict.numerals import spelled_alike

TEXT = """ <ir_version: 8, opset_import: ["" : 18]>
g ({dtype}[n] x, string[n] s) => (string[n] y, string[n] t) {{
  texts = Cast <to = 8> (x)
  y = Identity(texts)
  t = Identity(s)
}}"""
NUMPY = {"float": np.float32, "double": np.float64, "float16": np.float16}


@pytest.mark.parametrize("dtype", NUMPY)
def test_onnxruntime_writes_the_same_numbers(dtype: str) -> None:
    pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(3)
    x = rng.standard_normal(2000) * 10.0 ** rng.integers(-4, 5, 2000)
    x[:4] = 1, -0.0, np.inf, np.nan
    given = {"x": x.astype(NUMPY[dtype]), "s": np.full(2000, "1.0", string)}
    model = TEXT.format(dtype=dtype)
    assert api.compare(model, ("onnxruntime:cpu:none", "numpy"), given, repeat=0).ok


@pytest.mark.parametrize(
    ("output", "reference", "found", "same"),
    [
        ("y", "0.82216728", "0.8221673", True),
        ("y", "1", "1.0", True),
        ("y", "0.82216728", "0.8221683", False),
        ("y", "1", "-1", False),
        ("y", "1", "one", False),
        ("t", "1", "1.0", False),
    ],
)
def test_other_numbers_are_other_texts(
    output: str, reference: str, found: str, *, same: bool
) -> None:
    value = load(TEXT.format(dtype="float")).graph.outputs[output]
    texts = np.array([reference], string), np.array([found], string)
    assert (spelled_alike(value, *texts) == texts[0]).all() == same
