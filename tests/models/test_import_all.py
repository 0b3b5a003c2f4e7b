"""Every model at hand imports, in the newest opset, with the shapes that ONNX infers, too."""

from pathlib import Path

import onnx
import pytest
from onnx import shape_inference

from tercet.importers.onnx import load
from tercet.runtime.ir.dtypes import TO_ONNX
from tercet.runtime.ir.hints import shown
from tercet.runtime.ir.op import OPERATORS
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ir.verify import verify

LIGHT = sorted(Path(onnx.__file__).parent.glob("backend/test/data/light/*.onnx"))


def assert_imports(path: Path) -> None:
    graph = load(path).graph
    verify(graph)
    assert not [node.kind for node in graph.walk() if OPERATORS.get(key(node.kind)) is None]
    assert all(value.type is not None for node in graph.walk() for value in node.outputs)
    inferred = shape_inference.infer_shapes(onnx.load(path, load_external_data=False))
    for info in inferred.graph.output:
        type_, theirs = shown(graph.outputs[info.name]), info.type.tensor_type
        assert isinstance(type_, TensorType)
        assert TO_ONNX[type_.dtype] == theirs.elem_type
        if not theirs.HasField("shape"):
            continue
        assert type_.shape is not None
        assert len(type_.shape) == len(theirs.shape.dim)
        for ours, dim in zip(type_.shape, theirs.shape.dim, strict=True):
            if dim.HasField("dim_value") and dim.dim_value >= 0:  # -1 is no size
                assert ours == dim.dim_value


def key(kind: str) -> tuple[str, str]:
    domain, _, name = kind.rpartition("::")
    return domain, name


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_light_model(path: Path) -> None:
    assert_imports(path)


def test_all_light_models_are_here() -> None:
    assert len(LIGHT) == 9


def test_shared_models(shared_models: Path, subtests: pytest.Subtests) -> None:
    paths = sorted(shared_models.glob("*/model.onnx"))
    assert paths
    for path in paths:
        with subtests.test(path.parent.name):
            assert_imports(path)
