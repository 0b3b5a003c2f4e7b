"""`tercet compare` and `tercet.compare`: agreement, latencies, and who is left out."""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import tercet as api
from tercet.tools.verdict.agreement import agreement, tolerance_for

from . import models
from .conftest import Tercet

NUMPY_AND_ORT = "-b", "numpy", "-b", "onnxruntime"


def test_three_agree(tercet: Tercet) -> None:
    chosen = (*NUMPY_AND_ORT, "-b", "onnx.reference")
    done = tercet("compare", "classifier.onnx", *chosen, "--repeat", 2, "--dim", "batch=3")
    assert done.code == 0
    for words in ("numpy", "onnxruntime", "onnx.reference", "steady ms", "cold ms", "max abs"):
        assert words in done.out
    assert "onnxruntime, onnx.reference agree with numpy" in done.out


def test_json_has_everything(tercet: Tercet) -> None:
    found = tercet("compare", "adder.onnx", *NUMPY_AND_ORT, "--json", "--repeat", 4).json
    assert found["ok"] is True
    assert found["reference"] == "numpy"
    assert [entry["name"] for entry in found["inputs"]] == ["a", "b"]
    reference, other = found["runners"]
    assert reference["outputs"] == []
    assert [entry["output"] for entry in other["outputs"]] == ["sum", "positive"]
    assert other["steady_ms"]["runs"] == 4
    assert set(other["steady_ms"]) == {"median", "p10", "p90", "runs"}
    assert all(entry["verdict"] == "ok" for entry in other["outputs"])


@pytest.mark.parametrize(("repeat", "runs"), [(0, 1), (3, 6)])
def test_says_which_faults_of_chance_may_have_been_missed(
    repeat: int, runs: int, tmp_path: Path
) -> None:
    """Runs are the first, one more, those measured, and one after other inputs."""
    model, saved = models.classifier(), tmp_path / "saved.npz"
    api.compare(model, ["numpy", "onnxruntime"], repeat=repeat).save(saved)
    found = api.compare(model, ["numpy"], repeat=repeat, load=saved)
    numpy = found["numpy"]
    assert numpy.compared == runs
    assert (1 - numpy.rarest) ** runs == pytest.approx(0.05)
    said = " ".join(str(found).split())
    last = f"if it spoils at least {numpy.rarest:.1%} of numpy's ({runs} compared)."
    assert said.endswith(last)


def test_mismatch_is_located(tercet: Tercet) -> None:
    """No tolerance at all, and two libraries that add in another order."""
    rough = "--rtol", "0", "--atol", "0", "--repeat", 1
    done = tercet("compare", "classifier.onnx", *NUMPY_AND_ORT, *rough, "--dim", "batch=8")
    assert done.code == 1
    assert "MISMATCH: onnxruntime against numpy" in done.out
    assert "scores on onnxruntime: worst [" in done.out


def test_nan_of_all_is_mentioned(tercet: Tercet) -> None:
    """No difference shows it."""
    a = np.array([[1, np.nan], [np.inf, -np.inf]], np.float32)
    np.savez("in.npz", a=a, b=np.zeros((2, 2), np.float32))
    done = tercet("compare", "adder.onnx", *NUMPY_AND_ORT, "--inputs-from", "in.npz", "--repeat", 0)
    assert done.code == 0
    assert "sum on onnxruntime has 1 NaN and 2 infinities" in done.out
    assert "has" not in tercet("compare", "adder.onnx", *NUMPY_AND_ORT, "--repeat", 0).out.split()


def test_intermediate_tensors(tercet: Tercet) -> None:
    chosen = (*NUMPY_AND_ORT, "-b", "onnx.reference", "--outputs", "n,scores", "--json")
    found = tercet("compare", "classifier.onnx", *chosen).json
    assert found["ok"]
    assert [e["output"] for e in found["runners"][2]["outputs"]] == ["n", "scores"]


def test_without_names_all_that_can_run_take_part(tercet: Tercet) -> None:
    done = tercet("compare", "classifier.onnx", "--repeat", 1, "--json")
    assert done.code == 0
    able = [found.name for found in api.available() if found]
    assert [c["name"] for c in done.json["runners"]] == [*able, "onnxruntime"]


def test_sizes_of_1_that_a_runtime_refuses(tercet: Tercet, folder: Path) -> None:
    node = helper.make_node("MaxPool", ["x"], ["y"], name="pool", kernel_shape=[3, 3])
    inputs = [models.tensor("x", [1, 1, "h", "w"])]
    models.write(models.model_of([node], inputs, [models.tensor("y", None)]), folder / "m.onnx")
    done = tercet("compare", "m.onnx", "-b", "onnxruntime", "-b", "numpy")
    assert done.code == 3
    assert "onnxruntime does not run this model" in done.err
    assert (
        "dynamic dimensions defaulted to 1: h, w; --dim and --shape (dims, shapes) set them"
        in done.err
    )


def test_skipping(tercet: Tercet, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who cannot run is an error, or is listed with the reason."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    chosen = "-b", "numpy", "-b", "onnxruntime", "-b", "onnx.reference", "--repeat", 1
    done = tercet("compare", "classifier.onnx", *chosen)
    assert done.code == 5
    assert "pip install onnxruntime" in done.err
    done = tercet("compare", "classifier.onnx", *chosen, "--skip-unavailable")
    assert done.code == 0
    assert "onnxruntime did not take part" in done.out
    done = tercet("compare", "classifier.onnx", *chosen[:4], "--skip-unavailable")
    assert done.code == 2
    assert "able to run: numpy" in done.err


def test_threads_are_the_same_for_all_and_put_back(tercet: Tercet) -> None:
    from tercet.backends.numpy.numerics import blas

    before = blas.threads()
    done = tercet("compare", "adder.onnx", *NUMPY_AND_ORT, "--threads", 1, "--repeat", 1)
    if before is None:
        assert "not OpenBLAS" in done.err
        return
    assert done.out.count("on cpu, 1 thread\n".rstrip()) == 2
    assert blas.threads() == before


def test_python_interface(folder: Path) -> None:
    pictures = {"image": np.random.default_rng(0).random((2, 3, 8, 8), np.float32)}
    found = api.compare("classifier.onnx", ["numpy", "onnxruntime"], pictures, repeat=2)
    assert found.ok
    assert found["onnxruntime"].outputs["scores"].shape == (2, 10)
    (row,) = found.table()
    assert row["runner"] == "onnxruntime"
    assert row["max_rel"] < 1e-5
    assert "onnxruntime agrees with numpy" in str(found)
    with pytest.raises(KeyError):
        found["cuda"]
    in_memory = models.classifier()
    assert api.compare(in_memory, ["numpy", "onnxruntime"], repeat=1).model == "model"
    assert api.compare(in_memory.SerializeToString(), ["numpy", "onnx.reference"], repeat=1).ok


@pytest.mark.parametrize(
    ("runners", "words"),
    [
        (["numpy"], "takes two"),
        (["numpy", "numpy"], "with itself"),
        (["numpy", "onnxrutime"], "did you mean 'onnxruntime'"),
    ],
)
def test_runners_that_make_no_sense(folder: Path, runners: list[str], words: str) -> None:
    with pytest.raises(api.UsageError, match=words):
        api.compare("adder.onnx", runners)


# ── agreement ────────────────────────────────────────────────────────────────────────────────────

FLOAT32 = tolerance_for(np.dtype(np.float32))


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("reference", "found", "ok", "max_abs", "worst"),
    [
        (floats(1, 2, 3), floats(1, 2, 3), True, 0, None),
        (floats(1, 0, 100), floats(1, 0.009, 100), True, 0.009, (1,)),
        (floats(1, 0, 100), floats(1, 0.02, 100), False, 0.02, (1,)),
        (floats(0, 0), floats(0, 1e-39), True, 1e-39, (1,)),
        (floats(0, 0), floats(0, 1e-30), False, 1e-30, (1,)),
        (floats(np.nan, np.inf, 1), floats(np.nan, np.inf, 1), True, 0, None),
        (floats(np.nan, 1), floats(1, 1), False, 0, None),
        (floats(np.inf, 1), floats(-np.inf, 1), False, 0, None),
        (floats(), floats(), True, 0, None),
        (np.array([1, 2**62]), np.array([1, 2**62]), True, 0, None),
        (np.array([1, 5]), np.array([1, 7]), False, 2, (1,)),
        (np.array([True]), np.array([False]), False, 1, (0,)),
        (np.array([1 + 2j]), np.array([1 + 4j]), False, 2, (0,)),
    ],
)
def test_agreement(reference, found, ok, max_abs, worst) -> None:
    seen = agreement("y", reference, found, tolerance_for(reference.dtype))
    assert seen.ok is ok
    assert seen.max_abs == pytest.approx(max_abs)
    assert (seen.worst and seen.worst.index) == worst
    assert bool(seen.reason) is not ok


def test_agreement_of_other_types() -> None:
    wrong_shape = agreement("y", floats(1, 2), floats(1), FLOAT32)
    assert not wrong_shape.ok
    assert wrong_shape.reason == "is float32[1], reference float32[2]"
    texts = np.array(["a", "b"], object)
    assert agreement("y", texts, texts, tolerance_for(texts.dtype)).ok
    other = agreement("y", texts, np.array(["a", "c"], object), tolerance_for(texts.dtype))
    assert not other.ok
    assert "1 of 2 strings differ" in other.reason


def test_nan_and_infinities_are_counted() -> None:
    seen = agreement("y", floats(1, 2, 3, 4), floats(1, np.nan, np.inf, 4), FLOAT32)
    assert (seen.nan, seen.inf, seen.misplaced) == (1, 1, 2)
    assert seen.first_misplaced is not None
    assert seen.first_misplaced.index == (1,)


@pytest.mark.parametrize(
    ("dtype", "precisions", "relative"),
    [
        (np.float32, (), 1e-4),
        (np.float32, ("float32", "tf32"), 1e-2),
        (np.float64, ("tf32",), 1e-10),
        (np.float16, (), 1e-2),
        (ml_dtypes.bfloat16, (), 5e-2),
        (ml_dtypes.float8_e5m2, (), 0.25),
        (np.int32, (), 0),
        (np.bool_, (), 0),
        (np.complex64, (), 1e-4),
    ],
)
def test_default_tolerances(dtype, precisions, relative) -> None:
    found = tolerance_for(np.dtype(dtype), precisions)
    assert found.relative == relative
    assert (found.absolute > 0) == (relative > 0)
    assert tolerance_for(np.dtype(dtype), precisions, 0.5, 0.25).bound(2) == 1.25


def test_integers_may_differ_if_the_user_says_so(tercet: Tercet, folder: Path) -> None:
    models.write(models.unary("Abs", [3], TensorProto.INT32), folder / "m.onnx")
    done = tercet("compare", "m.onnx", *NUMPY_AND_ORT, "--atol", 1, "--repeat", 1)
    assert done.code == 0
