"""Networks as onnxruntime's quantizers make them, and as it saves these once more.

`tercet.tools.workshop.quantized_files` makes the files, and what onnxruntime's CPU computes.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tercet.tools.workshop.producers_page import error_of, page, row_of, tolerance, unplanned

from ..packages import needs_cuda

FOLDER = Path(__file__).parent / "quantized"
#: quantize_static declares what it quantizes as floats.
pytestmark = pytest.mark.filterwarnings("ignore:.*the file declares types:tercet.ModelWarning")
OPTIONS: dict[str, dict[str, Any]] = {
    "passes": {},
    "integers": {"integers": True},
    "as it is": {"stop_at": 0},
}
NAMES = sorted(file.stem for file in FOLDER.glob("*.onnx"))


def test_there_are_some() -> None:
    """Of every quantizer, with the operators that it writes."""
    nodes = [node for name in NAMES for node in onnx.load(FOLDER / f"{name}.onnx").graph.node]
    found = {node.op_type for node in nodes}
    assert len(NAMES) >= 36
    assert found >= {
        *("ConvInteger", "MatMulInteger", "DynamicQuantizeLinear", "DequantizeLinear"),
        *("MatMulNBits", "MatMulBnb4", "GatherBlockQuantized", "DynamicQuantizeMatMul"),
        *("MatMulIntegerToFloat", "QGemm", "QLinearAdd", "QLinearMul", "QLinearConcat"),
        *("QLinearConv", "QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearSoftmax"),
        *("QLinearSigmoid", "QLinearLeakyRelu"),
    }


@pytest.mark.parametrize("how", OPTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_results_are_those_of_onnxruntime(name: str, how: str) -> None:
    path = FOLDER / f"{name}.onnx"
    assert error_of(path, **OPTIONS[how]) <= tolerance(path)


@needs_cuda
@pytest.mark.parametrize("name", NAMES)
def test_cuda_leaves_nothing(name: str) -> None:
    assert not unplanned(FOLDER / f"{name}.onnx")


@needs_cuda
def test_the_page_says_what_is_wrong(tmp_path: Path) -> None:
    """A file whose results are others than recorded has a row that says so."""
    source = FOLDER / "mlp_int4.onnx"
    with np.load(source.with_suffix(".npz")) as file:
        arrays = {k: v + (k == "output/y") for k, v in file.items()}
    (tmp_path / "off.onnx").write_bytes(source.read_bytes())
    np.savez(tmp_path / "off.npz", **arrays)
    row = row_of(tmp_path / "off.onnx")
    assert (row.right, row.cuda, row.operators) == (False, "plans", "MatMulNBits")
    assert "**wrong**" in page([row])
    assert "1 files: 0 are right on numpy, 1 plan wholly on cuda" in page([row])
