"""Real networks on numpy, against what onnxruntime computed, as `model_table` judges it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tercet
from tercet.tools.common.inputs import InputRequest, make_inputs
from tercet.tools.workshop.model_table import check, one_rounding, read_index

from . import capabilities
from .exported import OnnxRuntime, exported

NAMES = (
    "acasxu-1_1",
    "agllnet-lowlight-256",
    "basic-pitch-nmp",
    "carvana-unet-upsample",
    "cctsdb-yolo-patch1",
    "cgan32-upsample",
    "chineseocr-dbnet",
    "cifar-resnet-sri-a",
    "collins-rul-matlab-cnn",
    "cut-superres-prepost-op16",
    "deeplabv3-mnv2-upsample",
    "derived-fp16-yolox-nano",
    "derived-q-fastestdet-qdq-s8-perchannel",
    "derived-q-mnist8-qoperator-u8",
    "derived-q-vit-ibp-dynamic-int8",
    "dtln-1",
    "fastestdet-coco",
    "gtcrn-simple",
    "magika-v1",
    "magika-v3_3",
    "ml4acopf-118",
    "mnist-8-cntk",
    "mnist-burn-bn",
    "mnist-external-data",
    "mscn-128d",
    "openwakeword-embedding",
    "openwakeword-melspectrogram",
    "silero-vad-op18-ifless",
    "silero-vad-v3-transformer",
    "silero-vad-v6",
    "super-resolution-10",
    "tract-bidi-lstm-bytes",
    "tract-qlstm-3-2-3-scan",
    "tract-xgboost-tree-ml",
    "traffic-signs-bnn-48",
    "ultraface-rfb-320",
    "vit-cifar-ibp_3_3_8",
    "yolofastestv2-front",
    "yolofastestv2-post",
    "yolox-nano",
)

#: Those that no single plan holds.
OF_STAGES = {
    *("cctsdb-yolo-patch1", "silero-vad-op18-ifless", "silero-vad-v6", "tract-qlstm-3-2-3-scan"),
}
#: Their files declare shapes that they do not compute.
of_files = pytest.mark.filterwarnings("ignore::tercet.ModelWarning")


@pytest.fixture(scope="module")
def index(shared_models: Path) -> Mapping[str, Mapping[str, str]]:
    """The rows of INDEX.tsv by the model's name."""
    return read_index(shared_models)


def test_no_model_is_forgotten(index: Mapping[str, Mapping[str, str]]) -> None:
    assert sorted(index) == sorted(NAMES)


@pytest.fixture(scope="module", params=NAMES)
def shared(
    request: pytest.FixtureRequest, shared_models: Path
) -> Iterator[tuple[tercet.Model, Path]]:
    """A model on numpy with its folder, loaded once for all tests."""
    folder = shared_models / request.param
    with tercet.load(folder / "model.onnx") as model:
        yield model, folder


@of_files
def test_results(shared: tuple[tercet.Model, Path], index: Mapping[str, Mapping[str, str]]) -> None:
    model, folder = shared
    results = list(check(folder, index[folder.name], model))
    assert results
    assert not [str(result) for result in results if not result.ok]


@of_files
def test_capabilities(shared: tuple[tercet.Model, Path]) -> None:
    """Also on cuda, where all that is known before a run is enough for a plan."""
    model, folder = shared
    stored = folder / "inputs.npz"
    if not stored.exists():
        capabilities.check(model, make_inputs(model.inputs, InputRequest()).arrays)
        return
    feeds = dict(np.load(stored, allow_pickle=False))
    capabilities.check(model, feeds)
    assert capabilities.check_recipes(model, feeds) == (folder.name not in OF_STAGES)


@of_files
def test_export(shared: tuple[tercet.Model, Path], index: Mapping[str, Mapping[str, str]]) -> None:
    """Written as the passes leave it, onnxruntime computes the same without optimisations."""
    model, folder = shared
    runtime: Any = OnnxRuntime(exported(model))
    results = list(check(folder, index[folder.name], runtime))
    assert results
    assert not [str(result) for result in results if not result.ok]


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize("largest", [1.0, 1.5, 0.1, 1000.0, 3.0])
def test_one_rounding_is_half_a_step_of_the_format(precision: str, largest: float) -> None:
    kind = np.dtype(np.float16 if precision == "float16" else ml_dtypes.bfloat16)
    (rounded,) = np.array([largest]).astype(kind)
    above = np.nextafter(rounded, kind.type(np.inf))
    step = float(above) - float(rounded)
    assert one_rounding(np.array([0.01, -float(rounded)], np.float32), precision) == step / 2


def test_integers_and_zeros_have_no_last_place() -> None:
    assert one_rounding(np.array([7, 9]), "float16") == 0
    assert one_rounding(np.zeros(3, np.float32), "bfloat16") == 0


@of_files
def test_layers_of_integers_give_what_onnxruntime_makes_of_them(
    shared_models: Path, index: Mapping[str, Mapping[str, str]]
) -> None:
    name = "derived-q-fastestdet-qdq-s8-perchannel"
    with tercet.load(shared_models / name / "model.onnx", integers=True) as model:
        assert model.rewrites.counts["multiply_integers"] == 70
        results = list(check(shared_models / name, index[name], model))
    assert [round(result.error, 2) for result in results] == [1.47, 0.88]  # INDEX.tsv: 1.5, 0.88
    assert not any(result.problem for result in results)
