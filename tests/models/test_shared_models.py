"""Real networks on numpy, against what onnxruntime computed without any graph optimisation.

The folder is optional; its INDEX.tsv says of every model how far onnxruntime is from itself once
it optimises the graph ("maxdiff" for seeded inputs, "diff" for the real sample). The greatest
error allowed is a multiple of that, never less than what another order of summation makes:

- floats: 4 times that figure, or 64 units in the last place of the greatest element;
- half floats: twice the distance between the model and the float32 model that it was made of, for
  two that round in different places may each be that far from it;
- quantized models: one step of 8 bits over the output's range;
- integers and strings: that figure, which is mostly 0.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tercet

Array = np.ndarray[Any, Any]

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

#: Models whose input is resized in bytes, for which onnxruntime has weights of 10 bits: that puts
#: up to 5 % of the resized pixels a step off, and the network sharpens a step to the number here.
RESIZED = {"cut-superres-prepost-op16": 5}
#: Share of their outputs that may be beyond the usual limit.
SHARE = 0.03

SETS = (("inputs", "expected_ort", "maxdiff"), ("real_inputs", "real_expected_ort", "diff"))


@pytest.fixture(scope="module")
def index(shared_models: Path) -> Mapping[str, Mapping[str, str]]:
    """The rows of INDEX.tsv by the model's name."""
    with (shared_models / "INDEX.tsv").open(newline="", encoding="utf-8") as file:
        return {row["name"]: row for row in csv.DictReader(file, delimiter="\t")}


def figure(row: Mapping[str, str], name: str) -> float:
    """Return a number of the column `ort`; 0 where it has none."""
    found = re.search(rf"\b{name} ([\d.e+-]+)", row["ort"])
    return float(found[1]) if found else 0.0


def allowed(row: Mapping[str, str], name: str, expected: Array) -> float:
    """Return the greatest error that an output may have."""
    itself = figure(row, name)
    if expected.dtype.kind not in "f":
        return itself
    if "quantized" in row["features"]:
        return float(np.ptp(expected)) / 255
    if expected.dtype == np.float16:
        return 2 * figure(row, "max abs diff")
    return max(4 * itself, 64 * 2.0**-23 * float(np.abs(expected).max(initial=0)))


def compare(name: str, got: Array, want: Array, limit: float) -> None:
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if want.dtype.kind in "OUST":
        assert got.tolist() == want.tolist()
        return
    error = np.abs(got.astype(np.float64) - want.astype(np.float64))
    assert np.isfinite(error).all()
    if name in RESIZED:
        assert (error > limit).mean() <= SHARE
        limit = RESIZED[name]
    worst = error.max(initial=0)
    assert worst <= limit, f"off by {worst}, of {np.abs(want).max()}"


def test_no_model_is_forgotten(index: Mapping[str, Mapping[str, str]]) -> None:
    assert sorted(index) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_shared_model(
    name: str, shared_models: Path, index: Mapping[str, Mapping[str, str]]
) -> None:
    folder = shared_models / name
    with tercet.load(folder / "model.onnx") as model:
        for inputs, outputs, column in SETS:
            if not (folder / f"{inputs}.npz").exists():
                continue
            feeds = dict(np.load(folder / f"{inputs}.npz"))
            found = model.run(feeds)
            expected = dict(np.load(folder / f"{outputs}.npz"))
            assert list(found) == list(expected)
            for key, want in expected.items():
                compare(name, found[key], want, allowed(index[name], column, want))
