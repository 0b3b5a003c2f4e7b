"""The shipped demo model, judged by onnxruntime: its files are what their README says."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

DEMO = Path(__file__).resolve().parents[2] / "tercet" / "demo"
CLASSES = 10


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return onnx.load(DEMO / "digits.onnx")


@pytest.fixture(scope="module")
def shipped() -> dict[str, np.ndarray]:
    with np.load(DEMO / "digits.npz", allow_pickle=False) as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model.SerializeToString())


@pytest.fixture(scope="module")
def metadata(model: onnx.ModelProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in model.metadata_props}


def dimensions(value: onnx.ValueInfoProto) -> list[str | int]:
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


def classify(session: onnxruntime.InferenceSession, image: np.ndarray) -> np.ndarray:
    return np.asarray(session.run(None, {"image": image})[0])


def test_model_is_valid(model: onnx.ModelProto) -> None:
    onnx.checker.check_model(model, full_check=True)


def test_interface(model: onnx.ModelProto) -> None:
    (image,), (probabilities,) = model.graph.input, model.graph.output
    assert (image.name, dimensions(image)) == ("image", ["batch", 1, 8, 8])
    assert (probabilities.name, dimensions(probabilities)) == ("probabilities", ["batch", 10])
    for value in (image, probabilities):
        assert value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT


def test_batch_norms_are_left_in(model: onnx.ModelProto) -> None:
    assert Counter(node.op_type for node in model.graph.node) == {
        "Conv": 2,
        "BatchNormalization": 2,
        "Relu": 2,
        "MaxPool": 2,
        "Flatten": 1,
        "Gemm": 1,
        "Softmax": 1,
    }


def test_batch_norms_are_trained(model: onnx.ModelProto) -> None:
    """An untrained batch-norm (mean 0, variance 1) would make folding prove nothing."""
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for name in ("bn1", "bn2"):
        mean, variance = arrays[f"{name}.running_mean"], arrays[f"{name}.running_var"]
        assert np.ptp(mean) > 0.1
        assert variance.max() > 2 * variance.min() > 0


def test_every_class_is_shipped(shipped: dict[str, np.ndarray]) -> None:
    images, labels = shipped["images"], shipped["labels"]
    assert (images.dtype, images.shape) == (np.uint8, (16, 1, 8, 8))
    assert images.max() == 16
    assert set(labels.tolist()) == set(range(CLASSES))
    assert len(np.unique(images, axis=0)) == len(images)


def test_onnxruntime_reproduces_shipped_probabilities(
    session: onnxruntime.InferenceSession, shipped: dict[str, np.ndarray]
) -> None:
    image = shipped["images"].astype(np.float32) / 16
    found = classify(session, image)
    np.testing.assert_allclose(found, shipped["probabilities"], rtol=0, atol=1e-5)


def test_batch_dimension_is_free(
    session: onnxruntime.InferenceSession, shipped: dict[str, np.ndarray]
) -> None:
    image = shipped["images"].astype(np.float32) / 16
    for row, expected in zip(image, shipped["probabilities"], strict=True):
        found = classify(session, row[None])
        np.testing.assert_allclose(found, expected[None], rtol=0, atol=1e-5)


def test_accuracy_is_as_stated(metadata: dict[str, str], shipped: dict[str, np.ndarray]) -> None:
    right = np.count_nonzero(shipped["probabilities"].argmax(axis=1) == shipped["labels"])
    assert right == int(metadata["shipped_correct"])
    assert len(shipped["labels"]) == int(metadata["shipped_images"])
    held_out, correct = int(metadata["held_out_images"]), int(metadata["held_out_correct"])
    assert metadata["held_out_accuracy"] == f"{correct / held_out:.4f}"
    assert correct / held_out >= 0.99


def test_metadata_names_origin(metadata: dict[str, str]) -> None:
    assert "Handwritten Digits" in metadata["dataset"]
    assert "CC BY 4.0" in metadata["licence"]
    assert {"seed", "epochs", "torch"} <= metadata.keys()


def test_files_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in DEMO.iterdir() if path.is_file()}
    assert sizes["digits.onnx"] < 200_000
    assert sum(sizes.values()) < 300_000
