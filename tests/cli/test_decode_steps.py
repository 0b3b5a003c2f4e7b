"""Comparing one step of a decoder: its past is that of the tokens before it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import tercet as api
from tercet import InputError, UsageError
from tercet.tools.common.decode_inputs import read_tokens

from ..generation.folders import DECODERS
from ..generation.stepwise import Stepwise
from .conftest import Tercet

MODEL = DECODERS / "optimum_qwen3" / "model.onnx"
TOKENS = [0, 259, 71, 223, 287, 278]
TEXT = ",".join(map(str, TOKENS))
FILES = [
    MODEL,
    DECODERS / "optimum_gpt2" / "model.onnx",
    DECODERS / "genai_phi3_fp32" / "model.onnx",
    DECODERS.parent / "transformers" / "genai_gemma2_fp32.onnx",
    DECODERS.parent / "quantized" / "decoder_int4.onnx",
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
@pytest.mark.parametrize("step", [0, 1, 4])
def test_inputs_are_what_onnxruntime_has_at_that_step(path: Path, step: int) -> None:
    tokens = TOKENS if path.stem == "model" else [token % 24 for token in TOKENS]
    session = Stepwise(path)
    for token in tokens[:step]:
        session(np.array([[token]], np.int64))
    found = api.decode_inputs(path, tokens, step)
    assert set(found) == set(session.inputs)
    for name, cache in session.caches.items():
        assert found[name].dtype == cache.dtype
        there = slice(step)  # of a window's buffer, onnxruntime leaves the rest as it is
        np.testing.assert_allclose(found[name][:, :, there], cache[:, :, there], 1e-4, 1e-4)
    wanted = session(np.array([[tokens[step]]], np.int64))
    with api.load(path) as model:
        logits = model.run(found)["logits"]
    np.testing.assert_allclose(logits, wanted, 1e-3, 1e-3)


def test_layers_of_a_step(tercet: Tercet) -> None:
    done = tercet(
        *("compare", MODEL, "--layers", "-b", "onnxruntime", "-b", "numpy", "--json"),
        *("--tokens", TEXT, "--decode-step", 3, "--twice"),
    )
    assert done.code == 0, done.err
    inputs = {each["name"]: each for each in done.json["inputs"]}
    assert inputs["input_ids"]["shape"] == [1, 1]
    assert inputs["past_key_values.0.key"]["shape"] == [1, 2, 3, 8]
    assert inputs["input_ids"]["origin"] == "token 3 of 6, behind its past"


def test_a_fault_that_only_a_past_shows_is_found(tercet: Tercet, folder: Path) -> None:
    """A rotation that is wrong from position 4 on: no prompt of four tokens shows it."""
    model = onnx.load(MODEL)
    scale = next(
        node for node in model.graph.node if node.op_type == "Cos" and "rotary" in node.name
    )
    ids = next(each.name for each in model.graph.input if each.name == "position_ids")
    model.graph.initializer.append(numpy_helper.from_array(np.array(4, np.int64), "four"))
    nodes = [
        onnx.helper.make_node("Greater", [ids, "four"], ["late"]),
        onnx.helper.make_node("Cast", ["late"], ["lateness"], to=1),
        onnx.helper.make_node("ReduceMax", ["lateness"], ["extra"], keepdims=0),
        onnx.helper.make_node("Add", [scale.output[0], "extra"], ["spoiled"], name="spoiler"),
    ]
    at = list(model.graph.node).index(scale)
    for node in model.graph.node:
        node.input[:] = ["spoiled" if name == scale.output[0] else name for name in node.input]
    for offset, node in enumerate(nodes, 1):
        model.graph.node.insert(at + offset, node)
    onnx.save(model, folder / "spoiled.onnx")
    line = ("compare", MODEL, "--layers", "--cumulative", "--other", "spoiled.onnx", "--json")
    assert tercet(*line, "--tokens", TEXT, "--decode-step", 3).code == 0
    done = tercet(*line, "--tokens", TEXT, "--decode-step", 5)
    assert done.code == 1
    first = done.json["layers"][done.json["first"] - 1]
    assert any("rotary" in each for each in first["nodes"])


def test_bisect_and_the_others_take_them(tercet: Tercet) -> None:
    for line in (
        ("bisect", MODEL, "-b", "numpy"),
        ("compare", MODEL, "-b", "onnxruntime", "-b", "numpy", "--repeat", 1),
        ("run", MODEL, "--repeat", 1),
        ("profile", MODEL, "--repeat", 1, "--no-peaks"),
    ):
        done = tercet(*line, "--tokens", TEXT, "--json")
        assert done.code == 0, done.err
        origins = {each["origin"] for each in done.json["inputs"]}
        assert origins == {"token 5 of 6, behind its past"}


def test_tokens_in_files(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.array([[1, 2, 3]]))
    written = {"prompts": [[9], [1]], "continuations": [{"prompt": 1, "ids": [2, 3]}]}
    (tmp_path / "g.json").write_text(json.dumps(written))
    (tmp_path / "l.json").write_text("[1, 2, 3]")
    (tmp_path / "t.txt").write_text("1 2\n3\n")
    for name in ("t.npy", "g.json", "l.json", "t.txt"):
        assert read_tokens(str(tmp_path / name)) == (1, 2, 3), name
    assert read_tokens("1,2,3") == (1, 2, 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gone.json", "neither numbers with commas between, nor a file"),
        ("a,b", "neither numbers"),
        ("words.txt", "has no tokens"),
        ("part.json", "has no tokens"),
        ("minus.json", "-1: expected a whole number >= 0"),
    ],
)
def test_tokens_that_are_none(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("words.txt").write_text("some words")
    Path("part.json").write_text('{"prompts": []}')
    Path("minus.json").write_text("[1, -1]")
    with pytest.raises(UsageError) as caught:
        read_tokens(text)
    assert said in str(caught.value)


def test_steps_that_are_not_there(tercet: Tercet) -> None:
    with pytest.raises(InputError, match="step=6: there are 6 tokens, counted from 0"):
        api.decode_inputs(MODEL, TOKENS, 6)
    done = tercet("run", MODEL, "--decode-step", 1)
    assert (done.code, "--decode-step needs --tokens" in done.err) == (2, True)
    done = tercet("run", MODEL, "--tokens", TEXT, "--dim", "batch_size=1")
    assert (done.code, "--tokens makes all inputs" in done.err) == (2, True)
    done = tercet("run", "classifier.onnx", "--tokens", TEXT)
    assert (done.code, "it is not a decoder: it has no input of token ids" in done.err) == (2, True)
