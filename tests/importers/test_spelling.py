"""Suggestions are for slips of the hand and for abbreviations; nothing far-fetched is suggested."""

import itertools
import random
from pathlib import Path

import onnx
import pytest

from tercet import UnsupportedError, load
from tercet.importers.onnx import load as read
from tercet.runtime.errors import ModelFileError
from tercet.runtime.spelling import edit_distance, nearest

OPERATORS = sorted({s.name for s in onnx.defs.get_all_schemas() if not s.domain})
NEAR = {
    "Relux": "Relu",
    "Cnov": "Conv",
    "Sofmax": "Softmax",
    "MAXPOOL": "MaxPool",
    "Conv2d": "Conv",
    "LayerNorm": "LayerNormalization",
    "grid_sampler": "GridSample",
}
FAR = ("Frobnicate", "Convolution", "Linear", "Voxelize", "FancyNorm", "MyNode", "Plugin", "Q", "")


@pytest.mark.parametrize(("word", "expected"), NEAR.items())
def test_slips_and_abbreviations(word: str, expected: str) -> None:
    assert nearest(word, OPERATORS) == expected


@pytest.mark.parametrize("word", FAR)
def test_nothing_is_near(word: str) -> None:
    assert nearest(word, OPERATORS) is None


def test_an_abbreviation_of_several_names_is_none() -> None:
    assert nearest("stop", ["stop_at", "skip"]) == "stop_at"
    assert nearest("stop", ["stop_at", "stop_in"]) is None


@pytest.mark.parametrize("name", ["Frobnicate", "Embedding"])
def test_an_unknown_operator_is_offered_none_that_is_unlike_it(name: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y)
        {{ y = {name} (x) }}"""
    with pytest.raises(UnsupportedError) as caught:
        read(onnx.parser.parse_model(text))
    assert "did you mean" not in str(caught.value)


def test_names_of_files_are_compared_without_their_suffix(tmp_path: Path) -> None:
    (tmp_path / "resnet.onnx").touch()
    (tmp_path / "b.onnx").touch()
    for name, near in (("resent.onnx", True), ("resnet.onxn", True), ("a.onnx", False)):
        with pytest.raises(ModelFileError) as caught:
            load(tmp_path / name)
        assert ("did you mean 'resnet.onnx'?" in str(caught.value)) == near
        assert ("did you mean" in str(caught.value)) == near


def _slow(one: str, other: str) -> int:
    """Return the distance by its recursive definition."""
    if not one or not other:
        return len(one) + len(other)
    found = [
        _slow(one[1:], other) + 1,
        _slow(one, other[1:]) + 1,
        _slow(one[1:], other[1:]) + (one[0] != other[0]),
    ]
    if one[:2] == other[1::-1] and len(one) > 1 and len(other) > 1:
        found.append(_slow(one[2:], other[2:]) + 1)
    return min(found)


def test_the_distance_is_that_of_its_definition() -> None:
    rng = random.Random(0)
    words = ["".join(rng.choices("abc", k=rng.randrange(5))) for _ in range(12)]
    for one, other in itertools.product(words, repeat=2):
        right = _slow(one, other)
        assert [edit_distance(one, other, most) for most in (0, 2, 9)] == [
            min(right, most + 1) for most in (0, 2, 9)
        ]
