"""Pictures become inputs as `preprocessor_config.json` says: as in transformers.

pictures.npz has settings that transformers 5.24 saved, and what its image processors that use
Pillow (ViT's and CLIP's) make of a picture with them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

from tercet import ModelError
from tercet.tools.common.picture_settings import pixels_beside

from .conftest import Tercet

RECORDED = np.load(Path(__file__).with_name("pictures.npz"))
CASES = [name.removeprefix("result/") for name in RECORDED.files if name.startswith("result/")]
SIDES = {"open": ("h", "w"), "fixed": ()}


def folder_of(
    folder: Path,
    settings: str,
    sides: tuple[str, ...] | tuple[int, ...],
    kind: int = TensorProto.FLOAT,
) -> Path:
    """Write a folder as transformers.js has it, with a model that returns its input."""
    (folder / "onnx").mkdir()
    (folder / "preprocessor_config.json").write_text(settings, "utf-8")
    Image.fromarray(RECORDED["picture"]).save(folder / "cat.png")
    x, y = (helper.make_tensor_value_info(n, kind, (1, 3, *sides)) for n in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    path = folder / "onnx" / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path)
    return path


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("case", CASES)
def test_inputs_of_transformers(case: str, sides: str, tercet: Tercet, tmp_path: Path) -> None:
    wanted = RECORDED[f"result/{case}"]
    settings = str(RECORDED[f"settings/{case}"])
    path = folder_of(tmp_path, settings, SIDES[sides] or wanted.shape[2:])
    saved = tmp_path / "out.npz"
    picture = tmp_path / "cat.png"
    done = tercet("run", str(path), "-i", str(picture), "--repeat", "1", "--save", str(saved))
    assert "preprocessor_config.json says" in " ".join(done.out.split())
    np.testing.assert_allclose(np.load(saved)["y"], wanted, rtol=1e-6, atol=1e-7)


def test_options_come_first(tercet: Tercet, tmp_path: Path) -> None:
    path = folder_of(tmp_path, str(RECORDED["settings/stretched"]), (8, 8))
    saved, picture = tmp_path / "out.npz", tmp_path / "cat.png"
    given = "--scale", "1", "--mean", "0", "--std", "1"
    tercet("run", str(path), "-i", str(picture), *given, "--repeat", "1", "--save", str(saved))
    np.testing.assert_array_equal(np.load(saved)["y"], RECORDED["result/raw"])


@pytest.mark.parametrize("option", ["--scale", "--mean", "--std"])
def test_options_that_integers_have_no_use_for(option: str, tercet: Tercet, tmp_path: Path) -> None:
    settings = str(RECORDED["settings/stretched"])
    path = folder_of(tmp_path, settings, (8, 8), TensorProto.UINT8)
    given = "run", str(path), "-i", str(tmp_path / "cat.png"), "--repeat", "1"
    assert tercet(*given).code == 0
    refused = tercet(*given, option, "2")
    assert (refused.code, f"leave out {option}: " in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("image_std", ["a"], "image_std.*expected numbers"),
        ("image_std", [0.0, 1.0, 1.0], "image_std.*other than 0"),
        ("size", {"height": 0, "width": 8}, r"size\.height.*whole number >= 1"),
        ("resample", 9, "resample.*expected one of 0, 1, 2"),
        ("rescale_factor", -1, "rescale_factor.*positive number"),
        ("do_resize", "yes", "do_resize.*true or false"),
    ],
)
def test_settings_that_are_none(field: str, value: object, text: str, tmp_path: Path) -> None:
    settings = {**json.loads(str(RECORDED["settings/stretched"])), field: value}
    path = folder_of(tmp_path, json.dumps(settings), (8, 8))
    with pytest.raises(ModelError, match=text) as caught:
        pixels_beside(path)
    assert str(tmp_path / "preprocessor_config.json") in str(caught.value)


def test_without_pictures_the_settings_are_not_read(tercet: Tercet, tmp_path: Path) -> None:
    path = folder_of(tmp_path, "{", (8, 8))
    assert "y" in tercet("run", str(path), "--repeat", "1").out
    elsewhere = tmp_path / "model.onnx"
    shutil.copy(path, elsewhere)
    with pytest.raises(ModelError, match="is not JSON"):
        pixels_beside(elsewhere)
