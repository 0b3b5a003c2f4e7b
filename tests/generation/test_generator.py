"""Generation from whole folders: tokens as transformers and onnxruntime have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tercet
from tercet import Generator, InputError, ModelError, UsageError
from tercet.runtime.session.decoding import CachedDecoder
from tercet.runtime.session.static_cache import StaticCaches

from .folders import DECODERS, Opened, copied, rewrite, told
from .stepwise import Stepwise

pytest.importorskip("tokenizers", reason="pip install tercet[generate]")
OPTIMUM = sorted(path.name for path in DECODERS.glob("optimum_*"))
FILES = sorted(path for path in DECODERS.rglob("*.onnx") if "uint8" not in path.stem)


@pytest.fixture(scope="module", params=OPTIMUM)
def optimum(request: pytest.FixtureRequest, opened: Opened) -> tuple[Generator, Any]:
    return opened(DECODERS / request.param), told(request.param)


@pytest.fixture(scope="module")
def reusing(opened: Opened) -> Generator:
    return opened(DECODERS / "optimum_llama", reuse=True)


@pytest.fixture(scope="module")
def llama(opened: Opened) -> Generator:
    return opened(DECODERS / "optimum_llama")


# ── transformers' tokens ─────────────────────────────────────────────────────────────────────────


def test_each_prompt_alone(optimum: tuple[Generator, Any]) -> None:
    generator, expected = optimum
    for number, prompt in enumerate(expected["prompts"]):
        found = generator.generate(prompt, max_new_tokens=32)
        assert found.ids == [expected["alone"][number]]
        assert found.prompts == (tuple(expected["ids"][number]),)
        assert found.text == generator.tokenizer.decode(found.ids[0])
        assert found.continuations[0].reason == "length"


def test_prompts_together(optimum: tuple[Generator, Any]) -> None:
    generator, expected = optimum
    found = generator.generate(expected["prompts"], max_new_tokens=32)
    assert found.ids == expected["padded"]
    assert [each.prompt for each in found.continuations] == [0, 1]


def test_repetition_penalty(optimum: tuple[Generator, Any]) -> None:
    generator, expected = optimum
    prompt = expected["prompts"][0]
    found = generator.generate(prompt, max_new_tokens=32, repetition_penalty=1.5)
    assert found.ids == [expected["penalty"]]


def test_the_chat_template(optimum: tuple[Generator, Any]) -> None:
    generator, expected = optimum
    if not (generator.folder.path / "chat_template.jinja").exists():
        with pytest.raises(ModelError, match="has no chat template"):
            generator.generate([{"role": "user", "content": "hi"}])
        return
    messages = [{"role": "user", "content": "hi"}]
    assert generator.tokenizer.chat(messages) == expected["chat"]
    by_text = generator.tokenizer.encode(expected["chat"], special=False)
    assert generator.generate(messages, max_new_tokens=2).prompts == (tuple(by_text),)
    assert by_text.count(0) == 1


# ── onnxruntime-genai's tokens ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "name",
    ["genai_llama_int4", "genai_phi3_fp32", "genai_gemma2_int4", "genai_masked_fp16"],
)
def test_folders_of_onnxruntime_genai(name: str) -> None:
    expected = told(name)
    with Generator(DECODERS / name) as generator:
        for number, prompt in enumerate(expected["prompts"]):
            found = generator.generate(prompt, max_new_tokens=32)
            assert found.prompts == (tuple(expected["ids"][number]),)
            assert found.ids == [expected["alone"][number]]
        prompt = expected["prompts"][0]
        found = generator.generate(prompt, max_new_tokens=32, repetition_penalty=1.5)
        assert found.ids == [expected["penalty"]]
        both = generator.generate(expected["prompts"], max_new_tokens=12).ids
        assert both == [row[:12] for row in expected["alone"]]


def test_rotations_that_are_others_in_long_texts() -> None:
    """Tables of angles have different lengths; steps of one plan read rows of both."""
    name = "genai_phi3long_fp32"
    expected = told(name)
    with Generator(DECODERS / name) as generator:
        for ids, wanted in zip(expected["ids"], expected["alone"], strict=True):
            assert generator.generate_ids(ids, max_new_tokens=32).ids == [wanted]
        decoder = generator._writer.opened(1)
        assert isinstance(decoder, CachedDecoder)
        assert isinstance(decoder.store, StaticCaches)
    with Generator(DECODERS / name, reuse=True) as generator:
        ids, wanted = expected["ids"][0], expected["alone"][0]
        generator.generate_ids(ids[:-1], max_new_tokens=1)
        assert generator.generate_ids(ids, max_new_tokens=32).ids == [wanted]


@pytest.mark.parametrize(
    ("search", "tokens"),
    [
        ({"max_length": 20, "no_repeat_ngram_size": 2},
         [51, 114, 251, 90, 114, 114, 106, 106, 247, 38, 199, 255, 98, 117, 239, 99]),
        ({"max_length": 14, "no_repeat_ngram_size": 1, "repetition_penalty": 1.5},
         [51, 114, 251, 90, 219, 58, 160, 281, 111, 263]),
        ({"max_length": 20, "min_length": 12},
         [51, 114, 251, 251, 251, 45, 141, 251, 251, 45, 45, 141, 75, 56, 56, 56]),
    ],
)  # fmt: skip
def test_search_of_onnxruntime_genai(
    search: dict[str, Any], tokens: list[int], tmp_path: Path
) -> None:
    """The tokens are those of onnxruntime-genai 0.18 for the same folder."""
    folder = copied("genai_phi3_fp32", tmp_path)
    config = folder / "genai_config.json"
    rewrite(config, **{f"search__{name}": value for name, value in search.items()})
    if "min_length" in search:
        rewrite(config, model__eos_token_id=90)
    with Generator(folder) as generator:
        assert generator.generate_ids([0, 5, 6, 7]).ids == [tokens]
        assert len(generator.generate_ids([0, 5, 6, 7], max_new_tokens=2).ids[0]) == 2
        with pytest.raises(InputError, match=r"genai_config.json: search.max_length"):
            generator.generate_ids([5] * search["max_length"])


# ── onnxruntime's tokens ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(DECODERS).as_posix())
def test_greedy_tokens_are_those_of_onnxruntime(path: Path) -> None:
    prompt = [0, 259, 71, 223, 287, 278]
    wanted, _ = Stepwise(path).greedy(prompt, 32)
    with Generator(path) as generator:
        generator.folder = type(generator.folder)(path, path.parent)  # no token ends it
        assert generator.generate_ids(prompt, max_new_tokens=32).ids == [wanted]


@pytest.mark.parametrize("variant", ["q4", "q4f16", "uint8", "model_q4.onnx", "onnx/model_q4.onnx"])
def test_variants_of_transformers_js(variant: str) -> None:
    with Generator(DECODERS / "transformersjs_llama", variant=variant) as generator:
        assert generator.folder.model.name.startswith("model_")
        found = generator.generate("the quick", max_new_tokens=3)
        assert len(found.ids[0]) == 3


# ── what is kept ─────────────────────────────────────────────────────────────────────────────────


def test_a_common_prefix_is_read_once(reusing: Generator) -> None:
    first, prompt = [5, 6, 7, 8, 9], [5, 6, 7, 20, 21, 22]
    reusing.rewind(0)
    wanted = reusing.generate_ids(prompt, max_new_tokens=5)
    assert wanted.reused == 0
    reusing.generate_ids(first, max_new_tokens=5)
    found = reusing.generate_ids(prompt, max_new_tokens=5)
    assert (found.ids, found.reused) == (wanted.ids, 3)
    again = reusing.generate_ids(prompt, max_new_tokens=5)
    assert (again.ids, again.reused) == (wanted.ids, 5)  # the last token is read for its scores
    longer = reusing.generate_ids([*prompt, *found.ids[0]], max_new_tokens=5)
    assert longer.reused == len(prompt) + 4
    assert reusing.ids[: len(prompt)] == prompt


def test_rewind(reusing: Generator) -> None:
    reusing.generate_ids([5, 6, 7, 8], max_new_tokens=3)
    assert len(reusing.ids) == 6
    assert reusing.rewind(2) == 2
    assert reusing.ids == [5, 6]
    assert reusing.generate_ids([5, 6, 7, 8], max_new_tokens=1).reused == 2
    with pytest.raises(UsageError, match="length=99: the caches hold 4 tokens"):
        reusing.rewind(99)


@pytest.mark.parametrize("variant", ["q4", "uint8"])
def test_every_call_is_as_the_first(variant: str) -> None:
    """Though an activation's scale, in the second file, is that of all tokens that are read."""
    with Generator(DECODERS / "transformersjs_llama", variant=variant) as generator:
        first = generator.generate("the quick", max_new_tokens=24)
        again = generator.generate("the quick", max_new_tokens=24)
    assert (again.ids, again.reused) == (first.ids, 0)


@pytest.mark.parametrize("chunk", [1, 3, 5])
@pytest.mark.parametrize("name", ["optimum_llama", "optimum_gpt2_merged"])
def test_a_prompt_in_parts(name: str, chunk: int) -> None:
    expected = told(name)
    with Generator(DECODERS / name, prefill_chunk=chunk) as generator:
        for number, prompt in enumerate(expected["prompts"]):
            found = generator.generate(prompt, max_new_tokens=16)
            assert found.ids == [expected["alone"][number][:16]]
        found = generator.generate(expected["prompts"], max_new_tokens=16)
        assert found.ids == [row[:16] for row in expected["padded"]]


def test_models_without_caches_read_everything_again() -> None:
    path = DECODERS.parent / "transformers" / "transformers_llama_O2.onnx"
    prompt = [3, 17, 5, 9]
    wanted, _ = Stepwise(path).greedy(prompt, 12)
    with Generator(path) as generator:
        assert generator.generate_ids(prompt, max_new_tokens=12).ids == [wanted]
        both = generator.generate_ids([prompt, prompt[:2]], max_new_tokens=3).ids
        assert both[0] == wanted[:3]
        assert both[1] == generator.generate_ids(prompt[:2], max_new_tokens=3).ids[0]


# ── ends ─────────────────────────────────────────────────────────────────────────────────────────


def test_any_of_several_tokens_ends_a_text(tmp_path: Path) -> None:
    alone = told("optimum_llama")["alone"][0]
    folder = copied("optimum_llama", tmp_path)
    rewrite(folder / "generation_config.json", eos_token_id=[alone[5], alone[2], 1])
    with Generator(folder) as generator:
        found = generator.generate("the quick", max_new_tokens=32)
        (only,) = found.continuations
        assert (list(only.ids), only.reason) == (alone[:3], "end")
        both = generator.generate(["the quick", told("optimum_llama")["prompts"][1]])
        assert both.continuations[0].ids == only.ids


def test_stop_strings(llama: Generator) -> None:
    whole = llama.generate("the quick", max_new_tokens=32)
    stop = whole.text[4:6]
    found = llama.generate("the quick", max_new_tokens=32, stop=["never", stop])
    assert found.text == whole.text[: whole.text.index(stop)]
    assert found.continuations[0].reason == "stop"
    assert len(found.ids[0]) < 32


def test_the_caches_are_full() -> None:
    with Generator(DECODERS / "optimum_llama", capacity=10) as generator:
        found = generator.generate("the quick", max_new_tokens=32)
        (only,) = found.continuations
        assert only.reason == "capacity"
        assert list(only.ids) == told("optimum_llama")["alone"][0][:5]  # 6, and 4 that were read
        with pytest.raises(InputError, match="has 16 tokens; the caches have room for 10"):
            generator.generate("once upon a time there was")


# ── streams ──────────────────────────────────────────────────────────────────────────────────────


def test_pieces_are_the_text(llama: Generator) -> None:
    whole = llama.generate("the quick", max_new_tokens=32)
    pieces = list(llama.stream("the quick", max_new_tokens=32))
    assert "".join(pieces) == whole.text == llama.last.text
    assert len(pieces) > 3
    tokens = list(llama.stream_ids(whole.prompts[0], max_new_tokens=32))
    assert tokens == whole.ids[0]


def test_a_stream_may_be_left(llama: Generator) -> None:
    wanted = llama.generate("the quick", max_new_tokens=8)
    for _ in llama.stream("the quick", max_new_tokens=8):
        break
    assert len(llama.last.ids[0]) < 8
    assert llama.generate("the quick", max_new_tokens=8).ids == wanted.ids


# ── draws ────────────────────────────────────────────────────────────────────────────────────────


def test_the_same_seed_gives_the_same_tokens(llama: Generator) -> None:
    how: dict[str, Any] = {"max_new_tokens": 12, "temperature": 1.5, "num_return_sequences": 3}
    first = llama.generate("the quick", seed=1, **how)
    assert first.ids == llama.generate("the quick", seed=1, **how).ids
    assert first.ids != llama.generate("the quick", seed=2, **how).ids
    assert len({tuple(row) for row in first.ids}) == 3
    alone = llama.generate("the quick", seed=1, **{**how, "num_return_sequences": 1})
    assert alone.ids[0] == first.ids[0]


def test_the_folder_asks_for_draws(tmp_path: Path) -> None:
    folder = copied("optimum_llama", tmp_path)
    rewrite(folder / "generation_config.json", do_sample=True, top_k=3, max_new_tokens=7)
    with Generator(folder) as generator:
        found = generator.generate("the quick", seed=4)
        assert len(found.ids[0]) == 7
        assert found.ids != generator.generate("the quick", seed=5).ids
        greedy = generator.generate("the quick", temperature=0)
        assert greedy.ids == [told("optimum_llama")["alone"][0][:7]]


def test_draws_are_of_fifty_tokens_where_the_folder_does_not_say(tmp_path: Path) -> None:
    """As transformers takes them."""
    folder = copied("optimum_llama", tmp_path)
    rewrite(folder / "generation_config.json", do_sample=True, temperature=9.0, max_new_tokens=9)
    with Generator(folder) as generator:
        found = [generator.generate("the quick", seed=seed).ids for seed in range(4)]
        for top_k, is_same in ((50, True), (0, False)):
            other = [
                generator.generate("the quick", seed=seed, top_k=top_k).ids for seed in range(4)
            ]
            assert (found == other) == is_same


def test_old_folders_have_their_settings_in_the_configuration(tmp_path: Path) -> None:
    folder = copied("optimum_llama", tmp_path)
    (folder / "generation_config.json").unlink()
    rewrite(folder / "config.json", repetition_penalty=1.3, max_new_tokens=5)
    with Generator(folder) as generator:
        found = generator.generate("the quick").ids
        assert len(found[0]) == 5
        assert found == generator.generate("the quick", repetition_penalty=1.3).ids
        assert found != generator.generate("the quick", repetition_penalty=1.0).ids


# ── figures ──────────────────────────────────────────────────────────────────────────────────────


def test_what_is_said_of_a_generation(llama: Generator) -> None:
    found = llama.generate("the quick", max_new_tokens=4)
    data = found.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert (data["prompt_tokens"], data["new_tokens"]) == (6, 4)
    assert 0 < data["first_token_ms"] <= data["total_ms"]
    assert found.tokens_per_second > 0
    assert str(found) == found.text


# ── what is refused ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda g: g.generate(5), "prompt=5"),
        (lambda g: g.generate([]), "prompt=[]"),
        (lambda g: g.generate(["a", 5]), "prompt="),
        (lambda g: g.generate("a\ud800"), "no Unicode text"),
        (lambda g: g.generate("a", max_new_tokens=0), "max_new_tokens=0"),
        (lambda g: g.generate("a", num_return_sequences=2**62), "a batch of 4611686018427387904"),
        (lambda g: g.generate("a", temprature=1), "did you mean 'temperature'"),
        (lambda g: g.stream(["a", "b"]), "one text is streamed"),
        (lambda g: g.stream("a", num_return_sequences=2), "one text is streamed"),
        (lambda g: g.generate_ids([]), "ids=[]"),
        (lambda g: g.generate_ids([[]]), "has no tokens"),
        (lambda g: g.generate_ids([[1], []]), "prompt 1 has no tokens"),
        (lambda g: g.generate_ids([1.5]), "ids=1.5"),
        (lambda g: g.generate_ids([-1]), "ids=-1"),
        (lambda g: g.generate_ids("a"), "ids='a'"),
        (lambda g: g.generate_ids([288]), "has the token 288; the model knows 288"),
        (lambda g: g.generate_ids([1], stop="x"), "stop"),
        (lambda g: g.generate_ids(np.zeros((1, 65), np.int64)), "max_position_embeddings"),
        (lambda g: g.rewind(-1), "length=-1"),
    ],
)
def test_calls_that_do_not_fit(llama: Generator, call: Any, text: str) -> None:
    with pytest.raises(tercet.TercetError) as caught:
        call(llama)
    assert text in str(caught.value)
    assert llama.generate("the quick", max_new_tokens=2).ids == [
        told("optimum_llama")["alone"][0][:2]
    ]
