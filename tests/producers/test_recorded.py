"""Models as converters write them by default, and what onnxruntime computes: see `record`."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tercet
from tercet.runtime.ir.types import Array
from tercet.tools.common.nested import flat
from tercet.tools.workshop.producers_page import unplanned

RECORDED = Path(__file__).parent / "recorded"
NAMES = sorted(file.stem for file in RECORDED.glob("*.onnx"))


def arrays(name: str, kind: str) -> dict[str, Array]:
    with np.load(RECORDED / f"{name}.npz") as file:
        found = {key[len(kind) + 1 :]: file[key] for key in file.files if key.startswith(kind)}
    return {k: data.astype(object) if data.dtype.kind == "U" else data for k, data in found.items()}


def agree(found: dict[str, Array], expected: dict[str, Array]) -> None:
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        assert found[name].dtype == wanted.dtype, name
        if wanted.dtype.kind == "f":
            np.testing.assert_allclose(found[name], wanted, 1e-4, 1e-5)
        else:
            np.testing.assert_array_equal(found[name], wanted)


def test_there_are_some() -> None:
    """One of every converter, and every operator of another domain that they write."""
    assert len(NAMES) >= 25
    assert {name.split("_")[0] for name in NAMES} >= {
        "sklearn",
        "text",
        "xgboost",
        "lightgbm",
        "catboost",
    }
    kinds = {
        (node.domain, node.op_type)
        for name in NAMES
        for node in onnx.load(RECORDED / f"{name}.onnx").graph.node
    }
    assert {op for domain, op in kinds if domain == "com.microsoft"} == {
        "CDist",
        "MurmurHash3",
        "Tokenizer",
    }


#: These converters declare one row, whatever the rows.
@pytest.mark.filterwarnings("ignore:.*the file declares types:tercet.ModelWarning")
@pytest.mark.parametrize("name", NAMES)
def test_results_are_those_of_onnxruntime(name: str) -> None:
    feeds = arrays(name, "input")
    with tercet.load(RECORDED / f"{name}.onnx") as model:
        agree(flat(model.run(feeds)), arrays(name, "output"))


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name.startswith(("sklearn_l", "text_c"))]
)
def test_they_survive_simplify(name: str, tmp_path: Path) -> None:
    smaller = tmp_path / "smaller.onnx"
    feeds = arrays(name, "input")
    assert tercet.simplify(RECORDED / f"{name}.onnx", smaller, inputs=feeds).ok
    with tercet.load(smaller) as model:
        agree(flat(model.run(feeds)), arrays(name, "output"))


def test_every_node_that_a_gpu_refuses_is_listed() -> None:
    labels, probabilities = unplanned(RECORDED / "catboost.onnx")
    assert (
        labels == "ai.onnx.ml::LabelEncoder: 'LabelEncoder' holds strings, which live on the host"
    )
    assert probabilities.startswith("ai.onnx.ml::ZipMap: 'probabilities' is sequence(map(string")


def test_sizes_without_names_are_those_of_the_inputs(tmp_path: Path) -> None:
    """PaddlePaddle's converters give all free sizes the name '?', which names none."""
    body = "(float[n,?,?] x) => (float[n,?,?] y) { y = Softmax (x) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {body}')
    for dim in model.graph.input[0].type.tensor_type.shape.dim[1:]:
        dim.dim_param = "?"
    onnx.save(model, tmp_path / "m.onnx")
    feeds: dict[str, Any] = {"input/x": np.zeros((2, 3, 5), np.float32)}
    np.savez(tmp_path / "m.npz", **feeds)
    assert unplanned(tmp_path / "m.onnx") == []
