"""tercet generate: text as it comes, ids, figures, and exit codes."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

from tercet.tools.generate import generate as tool

from ..generation.folders import DECODERS, told
from .conftest import Tercet

pytest.importorskip("tokenizers", reason="pip install tercet[generate]")
LLAMA = DECODERS / "optimum_llama"
EXPECTED = told("optimum_llama")
IDS = ",".join(map(str, EXPECTED["ids"][0]))


def test_text_goes_to_standard_output_and_figures_to_standard_error(tercet: Tercet) -> None:
    done = tercet("generate", LLAMA, "--prompt", "the quick", "--max-new-tokens", 8, "--show-ids")
    assert done.code == 0, done.err
    assert done.out.endswith("\n")
    assert f"prompt: {IDS.replace(',', ' ')}\n" in done.err
    assert f"tokens: {' '.join(map(str, EXPECTED['alone'][0][:8]))}\n" in done.err
    assert "6 tokens in the prompt, 8 generated in" in done.err
    assert "tokens/s" in done.err


def test_ids_without_a_tokenizer(tercet: Tercet) -> None:
    path = DECODERS / "transformersjs_llama"
    done = tercet("generate", path, "--file", "q4", "--ids", IDS, "--max-new-tokens", 3)
    assert done.code == 0, done.err
    assert len(done.out.split()) == 3
    unknown = tercet("generate", path, "--file", "q5", "--ids", IDS)
    assert (unknown.code, "error: --file q5: " in unknown.err) == (2, True)
    more = ("--num-return-sequences", 2, "--temperature", 1)
    done = tercet("generate", LLAMA, "--ids", IDS, "--max-new-tokens", 3, *more)
    assert [len(line.split()) for line in done.out.splitlines()] == [3, 3]


def test_json(tercet: Tercet) -> None:
    prompts = [part for text in EXPECTED["prompts"] for part in ("-p", text)]
    done = tercet("generate", LLAMA, *prompts, "--max-new-tokens", 32, "--json", "--twice")
    assert done.code == 0, done.err
    found = done.json
    assert [each["ids"] for each in found["continuations"]] == EXPECTED["padded"]
    rows = [x for row in EXPECTED["ids"] for x in ("--ids", ",".join(map(str, row)))]
    by_ids = tercet("generate", LLAMA, *rows, "--max-new-tokens", 3, "--json").json
    assert [each["ids"] for each in by_ids["continuations"]] == [r[:3] for r in EXPECTED["padded"]]
    assert (found["ok"], found["difference"], found["stopped"]) == (True, "", "")
    assert found["prompts"] == EXPECTED["ids"]


def test_a_chat(tercet: Tercet) -> None:
    how = ("--chat", "-p", "hi", "--system", "be brief", "--max-new-tokens", 1, "--json")
    found = tercet("generate", LLAMA, *how).json
    plain = tercet("generate", LLAMA, "-p", "hi", "--max-new-tokens", 1, "--json").json
    assert found["prompt_tokens"] > plain["prompt_tokens"]
    assert found["prompts"][0].count(0) == 1


def test_caches_in_a_file(tercet: Tercet, folder: Path) -> None:
    line = ("generate", LLAMA, "--max-new-tokens", 4, "--cache", "c.npz", "--json")
    first = tercet(*line, "--ids", IDS).json
    again = tercet(*line, "--ids", IDS, "--twice").json
    assert again["continuations"] == first["continuations"]
    assert (first["reused_tokens"], again["reused_tokens"]) == (0, len(EXPECTED["ids"][0]) - 1)
    done = tercet("generate", DECODERS / "optimum_qwen3", "--ids", IDS, "--cache", "c.npz")
    assert (done.code, "belongs to a model with other weights" in done.err) == (4, True)


def test_a_prompt_from_standard_input(tercet: Tercet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("the quick"))
    found = tercet("generate", LLAMA, "-p", "-", "--max-new-tokens", 4, "--json").json
    assert found["continuations"][0]["ids"] == EXPECTED["alone"][0][:4]


def test_draws(tercet: Tercet) -> None:
    how = ("--max-new-tokens", 8, "--temperature", 1.5, "--top-k", 50, "--json")
    rows = [
        tercet("generate", LLAMA, "-p", "the quick", *how, "--seed", seed).json["continuations"]
        for seed in (1, 1, 2)
    ]
    assert rows[0] == rows[1] != rows[2]


def test_tokens_that_are_not_repeated_end_with_1(
    tercet: Tercet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "_difference", lambda *_: "sequence 0: token 3 is not the same")
    done = tercet("generate", LLAMA, "-p", "the quick", "--max-new-tokens", 4, "--twice")
    assert done.code == 1
    assert "token 3 is not the same" in done.err


def test_the_first_token_that_differs_is_named() -> None:
    from tercet.generation.result import Continuation, Generation

    def of(*ids: int) -> Generation:
        return Generation((Continuation(0, ids, None, "length"),), ((1,),), 0, 0.1, 0.2)

    assert tool._difference(of(1, 2, 3), of(1, 2, 3)) == ""
    assert "sequence 0: token 1 " in tool._difference(of(1, 2, 3), of(1, 5, 3))
    assert "sequence 0: token 2 " in tool._difference(of(1, 2, 3), of(1, 2))


# The time may be up between the opening of a file and the block that closes it.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_is_there_when_the_time_is_up_is_shown(tercet: Tercet) -> None:
    done = tercet("generate", LLAMA, "-p", "the quick", "--timeout", 0.0001)
    assert done.code == 7


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ((LLAMA,), 2, "give one of --prompt TEXT, --ids 1,2,3"),
        ((LLAMA, "-p", "a", "--audio", "b"), 2, "--prompt and --audio exclude each other"),
        ((LLAMA, "--ids", "a"), 2, "--ids a: expected whole numbers"),
        ((LLAMA, "--ids", "1", "--chat"), 2, "--chat needs --prompt"),
        ((LLAMA, "-p", "a", "--system", "b"), 2, "--system needs --chat"),
        ((LLAMA, "--ids", "1", "--system", "b"), 2, "--system needs --chat"),
        (
            (LLAMA, "--ids", "1", "--timeout", "nan"),
            2,
            "--timeout nan: expected a finite number > 0",
        ),
        ((LLAMA, "--ids", "1", "--timeout", "0"), 2, "--timeout 0: expected a finite number > 0"),
        ((LLAMA, "-p", "a", "-p", "b", "--chat"), 2, "--chat takes one --prompt"),
        (("gone", "-p", "a"), 2, "gone: there is no such file or folder"),
        ((".", "-p", "a"), 4, "has neither genai_config.json nor config.json"),
        (("classifier.onnx", "--ids", "1"), 2, "it is not a decoder: it has no input of token ids"),
        ((LLAMA, "-p", "a", "-b", "nunpy"), 2, "did you mean 'numpy'"),
        ((LLAMA, "-p", "a", "--top-p", "2"), 2, "--top-p 2: expected a number from 0 to 1"),
        ((LLAMA, "-p", "a " * 80), 2, "max_position_embeddings"),
    ],
)
def test_wrong_usage(
    tercet: Tercet, arguments: tuple[str | Path, ...], code: int, text: str
) -> None:
    done = tercet("generate", *arguments)
    assert (done.code, text in done.err) == (code, True), done.err


def test_json_of_an_error(tercet: Tercet) -> None:
    done = tercet("generate", ".", "-p", "a", "--json")
    assert json.loads(done.out)["error"]["type"] == "ModelError"


def test_sound_and_features(tercet: Tercet, folder: Path) -> None:
    speech = DECODERS.parent / "encoders" / "optimum_whisper"
    wanted = json.loads((speech / "expected.json").read_text())["alone"]["de translate"][:5]
    with np.load(speech / "features.npz") as file:
        np.save(folder / "one.npy", file["features"][0])
        np.save(folder / "two.npy", np.repeat(file["features"], 2, 0))
    how = ("--language", "de", "--task", "translate", "--max-new-tokens", 5)
    for given in (("--audio", speech / "sound.wav"), ("--input-features", "one.npy")):
        done = tercet("generate", speech, *given, *how, "--show-ids")
        assert done.code == 0, done.err
        assert f"tokens: {' '.join(map(str, wanted))}\n" in done.err
        assert "features in the prompt, 5 generated in" in done.err
    done = tercet("generate", speech, "--input-features", "two.npy", *how, "--json")
    assert [each["ids"] for each in done.json["continuations"]] == [wanted, wanted]
    begun = ("--decoder-ids", "1,281,284,285", "--max-new-tokens", 5)
    done = tercet("generate", speech, "--input-features", "one.npy", *begun, "--json")
    assert done.json["continuations"][0]["ids"] == wanted
    done = tercet("generate", speech, "--input-features", "gone.npy")
    assert (done.code, "gone.npy" in done.err) == (2, True)
