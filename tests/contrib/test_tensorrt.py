"""TensorRT's operators, held against Model Optimizer; tools/workshop/modelopt_files.py ran it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import tercet

from ..packages import needs_cuda
from .stored import arrays

MODEL = Path(__file__).parent / "tensorrt.onnx"
HEAD = '<ir_version: 11, opset_import: ["" : 23, "trt": 1]>\n'


@pytest.mark.parametrize("options", [{}, {"stop_at": 0}], ids=["passes", "as it is"])
@pytest.mark.parametrize("domain", ["trt", ""])
def test_samples(options: Any, domain: str) -> None:
    """The domain may be left out: TensorRT looks for the names alone."""
    model = onnx.load(MODEL)
    for node in model.graph.node:
        node.domain = node.domain and domain
    wanted = arrays(MODEL, "output/")
    with tercet.load(model, **options) as loaded:
        found = loaded.run(arrays(MODEL, "input/"))
    assert len(wanted) == 5
    for name, result in wanted.items():
        np.testing.assert_array_equal(found[name], result, err_msg=name)


@needs_cuda
def test_cuda_leaves_nothing() -> None:
    found = tercet.inspect(MODEL, placement="cuda", target="sm_90a").placement
    assert found
    assert all(row.backend == "plan" or row.backend.startswith("cuda") for row in found)


def test_blocks_with_exponents_return() -> None:
    """Three bits of mantissa are kept, so that errors are 1/16 of a number at most."""
    text = (
        HEAD
        + """g (float[2,4,64] x) => (float16[2,4,64] y) {
        q, e = trt.TRT_MXFP8DynamicQuantize <axis = 1, block_size = 4> (x)
        y = trt.TRT_MXFP8DequantizeLinear <axis = 1, block_size = 4, output_dtype = 10> (q, e)
    }"""
    )
    x = np.random.default_rng(0).uniform(1, 1.5, (2, 4, 64)).astype(np.float32)
    x *= np.exp2(np.arange(64, dtype=np.float32) / 8)
    with tercet.load(parser.parse_model(text)) as model:
        (y,) = model(x)
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, x, 1 / 16)


@pytest.mark.parametrize("given", ["<axis = 0, block_size = 4>", ""])
def test_int4_in_blocks(given: str) -> None:
    """Axis and size of blocks follow from the shapes, if they are left out."""
    text = (
        HEAD
        + f"""g (float[8,3] x, float[2,3] s) => (float[8,3] y) {{
        q = trt.TRT_INT4QuantizeLinear {given} (x, s)
        y = trt.TRT_INT4DequantizeLinear {given} (q, s)
    }}"""
    )
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 3)).astype(np.float32)
    s = rng.uniform(0.1, 0.3, (2, 3)).astype(np.float32)
    with tercet.load(parser.parse_model(text)) as model:
        (y,) = model(x, s)
    wide = np.repeat(s, 4, 0)
    np.testing.assert_array_equal(y, np.clip(np.rint(x / wide), -8, 7).astype(np.float32) * wide)


def test_scales_that_fit_no_blocks_are_an_error() -> None:
    text = (
        HEAD
        + """g (float[8,6] x, float[2,3] s) => (float[8,6] y) {
        q = trt.TRT_INT4QuantizeLinear (x, s)
        y = Cast <to = 1> (q)
    }"""
    )
    with pytest.raises(tercet.ModelError, match="has no blocks of"):
        tercet.load(parser.parse_model(text))


def test_weights_that_are_not_packed_yet_are_an_error_with_the_remedy() -> None:
    """torch.onnx.export alone leaves the floats of a module that Model Optimizer has quantized."""
    text = (
        HEAD
        + """g (float[4,8] w, float[1,8] s) => (float[4,8] y) {
        y = trt.DequantizeLinear <axis = 0, block_size = 4> (w, s)
    }"""
    )
    with pytest.raises(tercet.ModelError, match=r"is of float32; expected int4.*INT4QuantExporter"):
        tercet.load(parser.parse_model(text))


def test_other_plugins_are_refused_with_a_recipe() -> None:
    text = HEAD + "g (float[4] x) => (float[4] y) { y = TRT_FP4QDQ (x) }"
    with pytest.raises(tercet.UnsupportedError, match="TensorRT's plugins"):
        tercet.load(parser.parse_model(text))
