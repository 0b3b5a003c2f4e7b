"""Transformers as onnxruntime's optimisers and onnxruntime-genai's builder write them.

`tercet.tools.workshop.transformer_files` makes the files, and what onnxruntime's CPU computes.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tercet
from tercet.runtime.ir.types import Array

from ..packages import needs_cuda

RECORDED = Path(__file__).parent / "transformers"
NAMES = sorted(file.stem for file in RECORDED.glob("*.onnx"))
DECODERS = [name for name in NAMES if name.startswith("genai")]


def arrays(name: str, kind: str) -> dict[str, Array]:
    with np.load(RECORDED / f"{name}.npz") as file:
        return {key[len(kind) + 1 :]: file[key] for key in file.files if key.startswith(kind)}


def tolerance(name: str) -> float:
    return 1e-2 if name.endswith(("fp16", "O4")) else 2e-5


def test_there_are_some() -> None:
    """Of every producer, with the operators that it writes in place of ONNX's."""
    found = {
        node.op_type
        for name in NAMES
        for node in onnx.load(RECORDED / f"{name}.onnx").graph.node
        if node.domain == "com.microsoft" or node.op_type == "SimplifiedLayerNormalization"
    }
    assert len(NAMES) >= 12
    assert found >= {
        *("Attention", "BiasGelu", "EmbedLayerNormalization", "FastGelu", "FusedMatMul"),
        *("GroupQueryAttention", "QuickGelu", "SkipLayerNormalization"),
        *("SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"),
    }


@pytest.mark.parametrize("passes", [True, False], ids=["passes", "as it is"])
@pytest.mark.parametrize("name", NAMES)
def test_results_are_those_of_onnxruntime(name: str, passes: bool) -> None:
    options: dict[str, Any] = {} if passes else {"stop_at": 0}
    with tercet.load(RECORDED / f"{name}.onnx", **options) as model:
        found = model.run(arrays(name, "input"))
    for key, wanted in arrays(name, "output").items():
        assert found[key].dtype == wanted.dtype, key
        a, b = (x.astype(np.float64) for x in (found[key], wanted))
        np.testing.assert_allclose(a, b, tolerance(name), tolerance(name), err_msg=key)


@needs_cuda
@pytest.mark.parametrize("name", NAMES)
def test_cuda_leaves_nothing(name: str) -> None:
    path = RECORDED / f"{name}.onnx"
    feeds = arrays(name, "input")
    dims = {
        dim.dim_param: size
        for each in onnx.load(path).graph.input
        for dim, size in zip(each.type.tensor_type.shape.dim, feeds[each.name].shape, strict=True)
        if dim.dim_param
    }
    found = tercet.inspect(path, placement="cuda", target="sm_90a", dims=dims)
    assert found.placement
    for row in found.placement:
        assert row.backend == "plan" or row.backend.startswith("cuda"), row


@pytest.mark.parametrize("name", [name for name in DECODERS if name.endswith("fp32")])
def test_a_step_with_caches_is_the_end_of_a_longer_prompt(name: str) -> None:
    prompt = arrays(name, "input")
    with tercet.load(RECORDED / f"{name}.onnx") as model:
        whole = model.run(prompt)["logits"]
        start: dict[str, Array] = {**prompt, "input_ids": prompt["input_ids"][:, :2]}
        start["attention_mask"] = prompt["attention_mask"][:, :2]
        found = model.run(start)
        np.testing.assert_allclose(found["logits"], whole[:, :2], 1e-4, 1e-5)
        for length in range(2, 5):
            step = {
                key.replace("present", "past_key_values"): found[key]
                for key in found
                if key.startswith("present")
            }
            step["input_ids"] = prompt["input_ids"][:, length : length + 1]
            step["attention_mask"] = prompt["attention_mask"][:, : length + 1]
            found = model.run(step)
            np.testing.assert_allclose(found["logits"][:, 0], whole[:, length], 1e-4, 1e-5)
