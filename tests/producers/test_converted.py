"""Networks as converters of many frameworks write them, and what onnxruntime computes.

`tercet.tools.workshop.converter_files` and `writer_files` make the files, and `qonnx_files` those
of Brevitas and `modelopt_files` those of Model Optimizer, whose results are their own: onnxruntime
cannot load the files of Brevitas, or those with float8. The results of `mindspore_upsampling`, two
Conv2dTranspose written by mindspore.export, are MindSpore's for the same reason.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tercet
from tercet.runtime.ir.types import Array
from tercet.runtime.session.placement import Placement

from ..packages import needs_cuda

#: Some declare results of other kinds: TorchScript, for one, has no float8.
pytestmark = pytest.mark.filterwarnings("ignore:.*the file declares types:tercet.ModelWarning")

RECORDED = Path(__file__).parent / "converted"
NAMES = sorted(file.stem for file in RECORDED.glob("*.onnx"))


def arrays(name: str, kind: str) -> dict[str, Array]:
    with np.load(RECORDED / f"{name}.npz") as file:
        return {key[len(kind) + 1 :]: file[key] for key in file.files if key.startswith(kind)}


def test_there_are_some() -> None:
    producers = {
        "brevitas",
        "diffusers",
        "hummingbird",
        "jax",
        "mindspore",
        "modelopt",
        "optimum",
        "paddle",
        "spox",
        "tf2onnx",
        "tflite",
        "torch",
    }
    assert {name.split("_")[0] for name in NAMES} == producers


@pytest.mark.parametrize("passes", [True, False], ids=["passes", "as it is"])
@pytest.mark.parametrize("name", NAMES)
def test_results_are_those_of_onnxruntime(name: str, passes: bool) -> None:
    options: dict[str, Any] = {} if passes else {"stop_at": 0}
    with tercet.load(RECORDED / f"{name}.onnx", **options) as model:
        found = model.run(arrays(name, "input"))
    for key, wanted in arrays(name, "output").items():
        assert found[key].dtype == wanted.dtype, key
        np.testing.assert_allclose(found[key], wanted, 2e-4, 2e-5, err_msg=key)


def placed(name: str) -> Placement | tuple[()]:
    """Return what is planned for a GPU that is not there."""
    shapes = {key: x.shape for key, x in arrays(name, "input").items()}
    path = RECORDED / f"{name}.onnx"
    return tercet.inspect(path, placement="cuda", target="sm_90a", shapes=shapes).placement or ()


#: What is not planned for a GPU that is not there: loops, and sizes that depend on the data.
HOSTED = {
    "paddle_selected": {"Compress"},
    "spox_loop": {"If", "Loop"},
    "tf2onnx_gates": {"Loop"},
    "tf2onnx_lstm": {"Loop"},
    "torch_branches": {"If"},
    "torch_loop": {"Loop"},
}


@needs_cuda
@pytest.mark.parametrize("name", NAMES)
def test_cuda_leaves_nothing(name: str) -> None:
    host = [row for row in placed(name) if row.backend != "plan" and "cuda" not in row.backend]
    assert {row.operators for row in host} == HOSTED.get(name, set())


#: Steps by operators that a network's idioms become.
KERNELS = {
    "jax_attention": {"Attention": 1, "Transpose": 0},
    "jax_vision": {"Attention": 1, "LayerNormalization": 2},
    "paddle_ernie": {
        **{"Attention": 1, "LayerNormalization": 2, "LayerNormalization + Tanh": 1},
        "Transpose": 0,
    },
    "paddle_reader": {"LSTM + Transpose": 1, "Conv + HardSwish": 2},
    "tf2onnx_attention": {"Attention": 1, "LayerNormalization": 1, "Transpose": 0},
    "tf2onnx_masked": {"LayerNormalization": 1},
}


@needs_cuda
@pytest.mark.parametrize("name", KERNELS)
def test_idioms(name: str) -> None:
    steps = [row.operators for row in placed(name) if row.kind == "step"]
    assert {kind: steps.count(kind) for kind in KERNELS[name]} == KERNELS[name]
