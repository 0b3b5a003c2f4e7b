"""The front door: what `tercet` offers at its top, and how it says no."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tercet
from tercet import TercetError, UsageError
from tercet.runtime.options import Precision


def test_every_public_name_is_there() -> None:
    for name in tercet.__all__:
        assert getattr(tercet, name) is not None
    assert set(tercet.__all__) <= set(dir(tercet))
    with pytest.raises(AttributeError, match="no attribute 'laod'"):
        _ = tercet.laod


def test_all_errors_have_one_base_and_all_warnings_another() -> None:
    names = [getattr(tercet, name) for name in tercet.__all__]
    for kind in names:
        if isinstance(kind, type) and issubclass(kind, Warning):
            assert issubclass(kind, tercet.TercetWarning)
        elif isinstance(kind, type) and issubclass(kind, Exception):
            assert issubclass(kind, TercetError)


def test_available_names_every_backend() -> None:
    found = {entry.name: entry for entry in tercet.available()}
    assert list(found) == ["numpy", "cuda", "cudnn", "tensorrt", "openvino"]
    assert found["numpy"]
    assert all(entry or (entry.missing and entry.remedy) for entry in found.values())


#: Not a precision.
UNKNOWN: Any = "fp16"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: tercet.run_op("Cnov", np.ones(1)), "there is no operator 'Cnov'; did you mean"),
        (lambda: tercet.run_op("Relu", np.ones(1), alpha=1), "Relu has no attribute 'alpha'"),
        (lambda: tercet.run_op("Add", np.ones(1)), "Add takes 2 inputs, not 1"),
        (lambda: tercet.to_device(np.ones(1), "numpy"), "runs on the host"),
        (lambda: tercet.pinned((1,), backend="numpy"), "runs on the host"),
        (lambda: tercet.load(b"", "nunpy"), "no backend 'nunpy'; did you mean 'numpy'?"),
        (lambda: tercet.load(b"", stop=3), "no option 'stop'; did you mean 'stop_at'?"),
        (lambda: tercet.load(b"", precision=UNKNOWN), "precision='fp16': expected one of"),
        (lambda: tercet.load(b"", precision=UNKNOWN), "did you mean 'float16'?"),
        (lambda: tercet.load(b"", "onnxruntime"), "another runtime, which compare"),
    ],
)
def test_wrong_calls(call, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        call()
    assert text in str(caught.value)


@pytest.mark.parametrize(("precision", "bound"), [("float16", 2e-3), ("bfloat16", 2e-2)])
def test_half_precision_gives_float32(precision: Precision, bound: float) -> None:
    digits = Path(tercet.__file__).parent / "demo" / "digits.onnx"
    x = np.random.default_rng(0).random((4, 1, 8, 8), np.float32)
    with tercet.load(digits) as exact, tercet.load(digits, precision=precision) as half:
        (want,), (got,) = exact(x), half(x)
    assert got.dtype == np.float32
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    assert 0 < error < bound


def test_run_op_with_several_results() -> None:
    x = np.array([[3, 1, 2]], np.float32)
    values, places = tercet.run_op("TopK", x, np.array([2]), outputs=2)
    np.testing.assert_array_equal(values, [[3, 2]])
    np.testing.assert_array_equal(places, [[0, 2]])


def test_batches_of_nothing() -> None:
    x, w = np.zeros((0, 2, 3, 3), np.float32), np.zeros((2, 2, 2, 2), np.float32)
    assert tercet.run_op("Conv", x, w).shape == (0, 2, 2, 2)
    assert tercet.run_op("ConvTranspose", x, w).shape == (0, 2, 4, 4)
    no_channels = tercet.run_op("Conv", np.zeros((1, 0, 3, 3), np.float32), w[:, :0])
    np.testing.assert_array_equal(no_channels, np.zeros((1, 2, 2, 2)))


def test_former_names_of_results_work_for_one_release() -> None:
    assert tercet.Bound is tercet.BoundModel
    assert tercet.Exported is tercet.ExportResult
    assert tercet.Kept is tercet.PrecisionResult
