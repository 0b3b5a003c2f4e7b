"""Networks as tf2onnx, optimum and diffusers write them, and what onnxruntime computes.

`tercet.tools.workshop.converter_files` makes the files.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tercet
from tercet.runtime.ir.types import Array

from ..packages import needs_cuda

RECORDED = Path(__file__).parent / "converted"
NAMES = sorted(file.stem for file in RECORDED.glob("*.onnx"))


def arrays(name: str, kind: str) -> dict[str, Array]:
    with np.load(RECORDED / f"{name}.npz") as file:
        return {key[len(kind) + 1 :]: file[key] for key in file.files if key.startswith(kind)}


def test_there_are_some() -> None:
    assert {name.split("_")[0] for name in NAMES} == {"diffusers", "optimum", "tf2onnx"}


@pytest.mark.parametrize("passes", [True, False], ids=["passes", "as it is"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:.*the file declares types:tercet.ModelWarning")
def test_results_are_those_of_onnxruntime(name: str, passes: bool) -> None:
    options: dict[str, Any] = {} if passes else {"stop_at": 0}
    with tercet.load(RECORDED / f"{name}.onnx", **options) as model:
        found = model.run(arrays(name, "input"))
    for key, wanted in arrays(name, "output").items():
        assert found[key].dtype == wanted.dtype, key
        np.testing.assert_allclose(found[key], wanted, 2e-4, 2e-5, err_msg=key)


@needs_cuda
@pytest.mark.parametrize("name", [name for name in NAMES if name != "tf2onnx_lstm"])
def test_cuda_leaves_nothing(name: str) -> None:
    """But of Keras's GRU, which tf2onnx writes as a Loop whose sizes nobody declares."""
    shapes = {key: x.shape for key, x in arrays(name, "input").items()}
    path = RECORDED / f"{name}.onnx"
    placed = tercet.inspect(path, placement="cuda", target="sm_90a", shapes=shapes).placement
    host = [row for row in placed or () if row.backend != "plan" and "cuda" not in row.backend]
    assert not [str(row) for row in host]
