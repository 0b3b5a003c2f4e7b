"""Idioms of networks as exporters spell them: what they become, and what they compute.

`record` makes the files; onnxruntime without its own optimisations is the judge.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import tercet

RECORDED = Path(__file__).parent / "recorded"
NAMES = sorted(file.stem for file in RECORDED.glob("*.onnx"))

#: What each model is planned as for an H200; the name without its exporter stands for both.
LAYER, SUM, GATED = "MatMul + Add", "MatMul + Add + Add", "MatMul + Add + Gelu"
_LLAMA = [
    *("RMSNormalization", "MatMul", "RotaryEmbedding", "Attention", LAYER),
    *("RMSNormalization", "MatMul", "MatMul + Swish + Mul", LAYER),
]
_PACKED = [LAYER, "Attention", LAYER]
_PIXELS = ["Conv", "Attention", "Conv + Add"]
KERNELS: dict[str, list[str]] = {
    "branches": ["Relu", "Conv + Relu"],
    "groups": ["Conv", "GroupNormalization + Swish", "Conv + Add"],
    "levit": [LAYER, "Attention", "HardSwish", SUM],
    "neox_chunk": _PACKED,
    "neox_unbind": _PACKED,
    "normed_heads": [
        "MatMul",
        *["Reshape + RMSNormalization + Reshape"] * 2,
        "Attention",
        "MatMul",
    ],
    "pixels_rows": _PIXELS,
    "pixels_columns": _PIXELS,
    "hybrid": ["Conv", "LayerNormalization", SUM, "Conv"],
    "scaled": ["Mul + MatMul + Add", LAYER, "LayerNormalization + Add"],
    "cosine": ["ReduceL2 + Clip + Div", LAYER],
    "bert": [LAYER, "Cast + Sub + Mul", "Attention", LAYER],
    "bert_boolean": [LAYER, "Greater + Where", "Attention", LAYER],
    "folded": [GATED, SUM],
    "gpt2": ["LayerNormalization", LAYER, "Attention", SUM, "LayerNormalization", GATED, SUM],
    "llama": _LLAMA,
    "llama_eager": _LLAMA,
    "swin": [LAYER, "Attention", LAYER],
    "whisper": ["LayerNormalization", LAYER, "Attention", SUM, GATED, SUM],
}


def feeds(model: tercet.Model, fill: float = 1.0) -> dict[str, np.ndarray]:
    """Return numbers for the inputs; masks hide a few keys, and all of them in one row."""
    rng = np.random.default_rng(0)
    found: dict[str, Any] = {}
    for info in model.inputs:
        assert info.dtype is not None
        shape = tuple(size for size in info.shape or () if isinstance(size, int))
        if info.dtype.kind == "f":
            found[info.name] = (rng.standard_normal(shape) * fill).astype(info.dtype)
        else:
            found[info.name] = (rng.random(shape) > 0.4).astype(info.dtype)
    return found


def expected(name: str, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        RECORDED / f"{name}.onnx", options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, inputs)


@pytest.mark.parametrize("fill", [1.0, 30.0])
@pytest.mark.parametrize("name", NAMES)
def test_results_are_those_of_the_file(name: str, fill: float) -> None:
    file = RECORDED / f"{name}.onnx"
    with tercet.load(file) as model, tercet.load(file, stop_at=0) as plain:
        inputs = feeds(model, fill)
        found, before = (each.run(inputs).values() for each in (model, plain))
    rtol = 1e-2 if "half" in name else 2e-5
    for got, same, wanted in zip(found, before, expected(name, inputs), strict=True):
        assert got.dtype == wanted.dtype
        size = float(np.abs(wanted).max())
        np.testing.assert_allclose(got, wanted, rtol, rtol * size)
        np.testing.assert_allclose(got, same, rtol, rtol * size)


@pytest.mark.parametrize("name", [name for name in NAMES if name.rpartition("_")[0] in KERNELS])
def test_kernels(name: str) -> None:
    """Whoever exported a model, it is planned as the same kernels."""
    found = tercet.inspect(
        RECORDED / f"{name}.onnx", placement="cuda", target="sm_90a", fallback="numpy"
    )
    assert found.placement is not None
    steps = [row.operators for row in found.placement if row.kind == "step"]
    assert steps == KERNELS[name.rpartition("_")[0]]


@pytest.mark.parametrize("name", [name for name in NAMES if "half" in name])
def test_norms_of_half_precision(name: str) -> None:
    """Casts to float32 and back around a norm are what the operator does anyway."""
    with tercet.load(RECORDED / f"{name}.onnx") as model:
        graph = model.graph
    norms = [node for node in graph.nodes if node.kind == "RMSNormalization"]
    assert len(norms) == 2
    for norm in norms:
        types = [value.tensor.dtype for value in (*norm.distinct_reads, norm.output)]
        assert types == [np.dtype(np.float16)] * 3
