"""Encoder-decoders from whole folders: tokens as transformers and onnxruntime have them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tercet import (
    DeviceOutOfMemory,
    Generator,
    InputError,
    ModelError,
    TercetError,
    UsageError,
)
from tercet.generation.bans import Bans
from tercet.generation.folder import read_folder
from tercet.generation.loading import Models
from tercet.runtime.session.static_cache import StaticCaches

from .encoders import BART, ENCODERS, T5, TROCR, WHISPER, copied, features, told
from .folders import DECODERS, Opened, check_refused, rewrite

NEW = 24


@pytest.fixture(scope="module", params=[T5, BART])
def texts(request: pytest.FixtureRequest, opened: Opened) -> tuple[Generator, Any]:
    return opened(ENCODERS / request.param), told(request.param)


@pytest.fixture(scope="module")
def whisper(opened: Opened) -> Generator:
    return opened(ENCODERS / WHISPER)


# ── transformers' tokens ─────────────────────────────────────────────────────────────────────────


def test_texts_alone_and_together(texts: tuple[Generator, Any]) -> None:
    generator, expected = texts
    pytest.importorskip("tokenizers", reason="pip install tercet[generate]")
    wanted = expected["alone"]
    for number, prompt in enumerate(expected["prompts"]):
        found = generator.generate(prompt, max_new_tokens=len(wanted[number]))
        assert found.ids == [wanted[number]]
        assert found.prompts == (tuple(expected["ids"][number]),)
        assert found.text == generator.tokenizer.decode(found.ids[0])
        streamed = "".join(generator.stream(prompt, max_new_tokens=len(wanted[number])))
        assert streamed == found.text
    both = generator.generate(expected["prompts"], max_new_tokens=len(wanted[0]))
    assert both.ids == wanted
    assert generator.ids == []


def test_ids_and_several_sequences(texts: tuple[Generator, Any]) -> None:
    generator, expected = texts
    found = generator.generate_ids(expected["ids"], max_new_tokens=6, num_return_sequences=2)
    assert found.ids == [row[:6] for row in expected["alone"] for _ in range(2)]
    drawn = generator.generate_ids(expected["ids"][0], temperature=2.0, seed=3, max_new_tokens=6)
    assert len(drawn.ids[0]) == 6


@pytest.mark.parametrize("language", [None, "de"])
@pytest.mark.parametrize("task", ["transcribe", "translate"])
def test_speech(whisper: Generator, language: str | None, task: str) -> None:
    """Features, the language that is heard, and tokens."""
    sound = whisper.audio_features(ENCODERS / WHISPER / "sound.wav")
    np.testing.assert_allclose(sound, features(WHISPER), rtol=0, atol=1e-4)
    found = whisper.generate_features(sound, language=language, task=task, max_new_tokens=NEW)
    assert found.ids == [told(WHISPER)["alone"][f"{language or ''} {task}"]]
    if task == "transcribe":
        again = whisper.generate_features(sound[0], language=language, max_new_tokens=NEW)
        assert again.ids == found.ids


def test_pictures() -> None:
    pixels, wanted = features(TROCR), told(TROCR)["alone"]
    with Generator(ENCODERS / TROCR) as generator:
        assert generator.features is not None
        assert generator.features.name == "pixel_values"
        assert generator.generate_features(pixels, max_new_tokens=NEW).ids == wanted
        one = generator.generate_features(pixels[1], max_new_tokens=NEW)
        assert one.ids == wanted[1:]


def test_the_decoder_begins_with_what_the_caller_says(whisper: Generator) -> None:
    """So a language is a matter of its tokens."""
    sound = features(WHISPER)
    told_so = whisper.generate_features(sound, decoder_ids=[1, 281, 283, 285], max_new_tokens=NEW)
    assert told_so.ids == [told(WHISPER)["alone"]["de transcribe"]]


@pytest.mark.parametrize("name", [T5, BART])
def test_steps_that_feed_themselves(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device, where a second text of the same length takes the plans of the first."""
    monkeypatch.setattr(
        StaticCaches, "chains", property(lambda _: True, lambda *_: None), raising=False
    )
    expected = told(name)
    with Generator(ENCODERS / name) as generator:
        for ids in (expected["ids"][0], [5] * len(expected["ids"][0]), expected["ids"][0]):
            found = generator.generate_ids(ids, max_new_tokens=len(expected["alone"][0])).ids
        assert found == [expected["alone"][0]]
        both = generator.generate_ids(expected["ids"], max_new_tokens=8, num_return_sequences=2)
    assert both.ids == [row[:8] for row in expected["alone"] for _ in range(2)]


def test_steps_of_speech_that_feed_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        StaticCaches, "chains", property(lambda _: True, lambda *_: None), raising=False
    )
    with Generator(ENCODERS / WHISPER) as generator:
        found = generator.generate_features(features(WHISPER), max_new_tokens=NEW)
    assert found.ids == [told(WHISPER)["alone"][" transcribe"]]


class Made:
    """Lengths of the texts for which caches are made, and of those that are closed again.

    Args:
        patch: of the test.
        room: the most of them that memory has room for.
    """

    def __init__(self, patch: pytest.MonkeyPatch, room: int = 100) -> None:
        self.opened: list[int] = []
        self.closed: list[int] = []
        lengths: dict[StaticCaches, int] = {}
        begin, close = StaticCaches.__init__, StaticCaches.close

        def opening(store: StaticCaches, *args: Any, **options: Any) -> None:
            if len(self.opened) - len(self.closed) == room:
                raise DeviceOutOfMemory("no room")
            begin(store, *args, **options)
            lengths[store] = options["given"]["encoder_attention_mask"].shape[1]
            self.opened.append(lengths[store])

        def closing(store: StaticCaches) -> None:
            self.closed.append(lengths[store])
            close(store)

        patch.setattr(Models, "_rounds", lambda _: True)
        patch.setattr(StaticCaches, "__init__", opening)
        patch.setattr(StaticCaches, "close", closing)

    def generate(self, *lengths: int) -> None:
        """Generate from texts of these lengths, in turn."""
        with Generator(ENCODERS / T5) as generator:
            for number, length in enumerate(lengths):
                prompt = [(7 * number + i) % 90 + 3 for i in range(length)]
                found = generator.generate_ids(prompt, max_new_tokens=NEW).ids[0]
                assert found == by_onnxruntime(ENCODERS / T5, prompt, NEW)[: len(found)]


def test_texts_of_most_lengths_share_their_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they are padded, which changes no token; also where lengths take turns."""
    made = Made(monkeypatch)
    made.generate(3, 7, 17, 16, 20)
    assert made.opened == [16, 32]


def test_plans_of_the_last_lengths_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(monkeypatch)
    made.generate(16, 32, 64, 128, 16, 256, 16, 32)
    assert made.opened == [16, 32, 64, 128, 256, 32]
    assert made.closed[:2] == [32, 64]
    assert sorted(made.closed) == sorted(made.opened)


def test_plans_of_other_lengths_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(monkeypatch, room=2)
    made.generate(16, 32, 64, 32)
    assert made.opened == [16, 32, 64, 32]
    assert made.closed[:2] == [16, 32]
    with pytest.raises(DeviceOutOfMemory):
        Made(monkeypatch, room=0).generate(16)


# ── onnxruntime's tokens ─────────────────────────────────────────────────────────────────────────


def session(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def by_onnxruntime(folder: Path, ids: list[int], count: int) -> list[int]:
    """Encoder, first step and steps behind it, each with every tensor that it names."""
    encoder, first, later = (
        session(folder / f"{name}.onnx")
        for name in ("encoder_model", "decoder_model", "decoder_with_past_model")
    )
    given: dict[str, Any] = {"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)))}
    given["attention_mask"] = given["attention_mask"].astype(np.int64)
    states = encoder.run(None, given)[0]
    held: dict[str, Any] = {
        "encoder_hidden_states": states,
        "encoder_attention_mask": given["attention_mask"],
    }
    tokens, token = [], 2
    for step in range(count):
        model = later if step else first
        feeds = {**held, "input_ids": np.array([[token]])}
        found = model.run(None, {each.name: feeds[each.name] for each in model.get_inputs()})
        for each, value in zip(model.get_outputs(), found, strict=True):
            held[each.name.replace("present", "past_key_values")] = value
        token = int(np.asarray(held["logits"])[0, -1].argmax())
        tokens.append(token)
    return tokens


def test_greedy_tokens_are_those_of_onnxruntime(opened: Opened) -> None:
    prompt = [0, 259, 71, 30, 99, 7, 1]
    found = opened(ENCODERS / T5).generate_ids(prompt, max_new_tokens=NEW).ids[0]
    assert found == by_onnxruntime(ENCODERS / T5, prompt, NEW)[: len(found)]


def test_layouts_agree(tmp_path: Path) -> None:
    """With caches, without any, and with other variants in ``onnx``, as for transformers.js."""
    folder = copied(T5, tmp_path)
    ids = told(T5)["ids"]
    wanted = [row[:8] for row in told(T5)["alone"]]
    with Generator(folder / "decoder_model.onnx") as generator:
        assert not generator.layout.caches
        assert generator.generate_ids(ids, max_new_tokens=8).ids == wanted
    inner = folder / "onnx"
    inner.mkdir()
    for file in list(folder.glob("*.onnx")):
        shutil.copy(file, inner / f"{file.stem}_q4.onnx")
        file.rename(inner / file.name)
    (inner / "encoder_model_q4.onnx").unlink()
    for variant in (None, "q4", "decoder_with_past_model_q4", "onnx/decoder_model_q4.onnx"):
        with Generator(folder, variant=variant) as generator:
            assert generator.folder.encoder == inner / "encoder_model.onnx"
            assert ("q4" in generator.folder.model.stem) == (variant is not None)
            assert generator.generate_ids(ids, max_new_tokens=8).ids == wanted
    for file in ("decoder_model.onnx", LATER):
        (inner / file).unlink()
    assert read_folder(folder).model == inner / "decoder_with_past_model_q4.onnx"
    shutil.copy(inner / "decoder_model_q4.onnx", inner / "decoder_model_fp16.onnx")
    with pytest.raises(UsageError, match=r"several models .*decoder_model_fp16.*choose one"):
        read_folder(folder)


# ── what does not fit ────────────────────────────────────────────────────────────────────────────

Spoil = Callable[[Path], object]


def drop(*names: str) -> Spoil:
    return lambda folder: [(folder / name).unlink() for name in names]


def put(config: str, **fields: Any) -> Spoil:
    return lambda folder: rewrite(folder / config, **fields)


def renamed(file: str, old: str, new: str) -> Spoil:
    """Call a tensor otherwise, everywhere in a file."""

    def change(folder: Path) -> None:
        model = onnx.load(folder / file)
        for each in (*model.graph.input, *model.graph.output):
            each.name = new if each.name == old else each.name
        for node in model.graph.node:
            for names in (node.input, node.output):
                names[:] = [new if name == old else name for name in names]
        onnx.save(model, folder / file)

    return change


LATER = "decoder_with_past_model.onnx"
SPOILED: list[tuple[str, Spoil, type[TercetError], str]] = [
    *(
        (
            WHISPER if "to_id" in field else T5,
            put("generation_config.json", **{field: {"<|en|>": 288} if "to_id" in field else 288}),
            ModelError,
            f"generation_config.json: {field}: 288, but",
        )
        for field in (
            *("decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id"),
            *("lang_to_id", "task_to_id"),
        )
    ),
    (T5, drop("encoder_model.onnx"), ModelError, "is_encoder_decoder: true, but there is no"),
    (T5, drop("decoder_model.onnx"), ModelError, f"has {LATER}, but not decoder_model.onnx"),
    (T5, drop("decoder_model.onnx", LATER), ModelError, "has encoder_model.onnx, but no decoder"),
    (
        T5,
        lambda folder: [
            put(name, decoder_start_token_id=None, bos_token_id=None)(folder)
            for name in ("config.json", "generation_config.json")
        ],
        ModelError,
        "generation_config.json: decoder_start_token_id: is not there",
    ),
    (T5, put("config.json", num_decoder_layers=0.5), ModelError, "num_decoder_layers: 0.5"),
    (BART, put("config.json", decoder_attention_heads=8), ModelError, "decoder_attention_heads: 8"),
    (
        BART,
        put("generation_config.json", bad_words_ids=[[2], "no"]),
        ModelError,
        "generation_config.json: bad_words_ids:",
    ),
    (
        BART,
        put("generation_config.json", forced_decoder_ids=[1]),
        ModelError,
        "generation_config.json: forced_decoder_ids: [1]: expected pairs",
    ),
    (
        WHISPER,
        put("generation_config.json", lang_to_id=["en"]),
        ModelError,
        "generation_config.json: lang_to_id: ['en']: expected tokens",
    ),
    (
        T5,
        renamed("encoder_model.onnx", "attention_mask", "noise"),
        ModelError,
        "encoder_model.onnx: input 'noise': an encoder takes input_ids",
    ),
    (
        T5,
        renamed("decoder_model.onnx", "present.0.encoder.key", "other"),
        ModelError,
        "decoder_model.onnx: it has no output for the cache 'past_key_values.0.encoder.key'",
    ),
]


@pytest.mark.parametrize(
    ("name", "spoil", "kind", "text"), SPOILED, ids=[text for *_, text in SPOILED]
)
def test_folders_that_do_not_fit(
    name: str, spoil: Spoil, kind: type[TercetError], text: str, tmp_path: Path
) -> None:
    check_refused(copied(name, tmp_path), spoil, kind, text)


def test_a_folder_without_settings_of_generation_has_those_of_its_configuration(
    tmp_path: Path,
) -> None:
    folder = copied(T5, tmp_path)
    (folder / "generation_config.json").unlink()
    with Generator(folder) as generator:
        found = generator.generate_ids(told(T5)["ids"][0], max_new_tokens=4).ids
    assert found == [told(T5)["alone"][0][:4]]


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"language": "xx"}, "language='xx': the model has no such language"),
        ({"task": "sing"}, "task='sing': the model has no such task"),
        ({"decoder_ids": []}, "decoder_ids"),
        ({"decoder_ids": [-1]}, "decoder_ids"),
    ],
)
def test_beginnings_that_do_not_fit(whisper: Generator, how: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        whisper.generate_features(features(WHISPER), **how)


def test_what_is_given_to_another_kind_of_model(texts: tuple[Generator, Any]) -> None:
    generator, _ = texts
    with pytest.raises(UsageError, match=r"encoder_model\.onnx: it takes input_ids"):
        generator.generate_features(np.zeros((1, 8, 100), np.float32))
    with pytest.raises(UsageError, match="takes text, not audio"):
        generator.audio_features("a.wav")
    with pytest.raises(UsageError, match="language='en': the model takes none"):
        generator.generate_ids([5], language="en")
    with pytest.raises(InputError, match="the prompt has no tokens"):
        generator.generate_ids([[]])


def test_texts_for_a_model_of_sound(whisper: Generator) -> None:
    with pytest.raises(UsageError, match=r"it takes input_features: .* and no text"):
        whisper.generate_ids([5])
    with pytest.raises(InputError, match=r"features \[8\]: expected input_features"):
        whisper.generate_features(np.zeros(8, np.float32))
    with pytest.raises(InputError, match=r"features \[0, 8, 3000\]: expected input_features"):
        whisper.generate_features(np.zeros((0, 8, 3000), np.float32))
    with pytest.raises(InputError, match=r"decoder_ids has the token 288; .* knows 288"):
        whisper.generate_features(features(WHISPER), decoder_ids=[5, 288])
    with pytest.raises(InputError, match="its caches have room for 64"):
        whisper.generate_features(features(WHISPER), decoder_ids=[5] * 65)


def test_decoders_of_prompts_have_no_such_settings(opened: Opened) -> None:
    generator = opened(DECODERS / "optimum_llama")
    with pytest.raises(UsageError, match="begins with the prompt"):
        generator.generate_ids([5], language="en")
    with pytest.raises(UsageError, match="reads no features"):
        generator.generate_features(np.zeros((1, 3)))


def test_caches_are_kept_for_nobody(opened: Opened) -> None:
    with pytest.raises(UsageError, match="reuse=True: caches belong to what"):
        Generator(ENCODERS / T5, reuse=True)
    generator = opened(ENCODERS / T5)
    generator.generate_ids([5], max_new_tokens=2)
    with pytest.raises(UsageError, match="the caches hold no tokens"):
        generator.save("nowhere.npz")


def test_a_prompt_that_the_encoder_has_no_room_for(opened: Opened) -> None:
    with pytest.raises(InputError, match=r"has 65 tokens; the encoder has room for 64 \(.*config"):
        opened(ENCODERS / BART).generate_ids([5] * 65)


# ── tokens that may not come ─────────────────────────────────────────────────────────────────────


def test_a_text_of_maximum_length_ends_as_it_must(tmp_path: Path) -> None:
    alone = told("optimum_bart")["alone"][0]
    folder = copied("optimum_bart", tmp_path)
    rewrite(folder / "generation_config.json", forced_eos_token_id=1)
    with Generator(folder) as generator:
        (only,) = generator.generate("the quick", max_new_tokens=9).continuations
    assert (list(only.ids), only.reason) == ([*alone[:8], 1], "end")


@pytest.mark.parametrize(
    ("bans", "seen", "new", "wanted"),
    [
        (Bans(always=(4,), first=(5,)), [7], 0, {4, 5}),
        (Bans(always=(4,), first=(5,)), [7, 8], 1, {4}),
        (Bans(words=((2,), (7, 8), (9, 8))), [1, 7], 1, {2, 8}),
        (Bans(words=((2,), (0,), (0, 0))), [1, 7], 1, {2}),
        (Bans(words=((0,), (7, 0))), [1, 7], 1, {0}),
        (Bans(repeated=3), [1, 2, 3, 1, 2], 4, {3}),
        (Bans(repeated=1), [1, 2], 1, {1, 2}),
        (Bans(repeated=4), [1, 2], 1, set()),
        (Bans(least=3), [1, 2], 1, {0}),
        (Bans(least=3), [1, 2, 3], 2, set()),
        (Bans(least_new=2), [1, 2, 3], 1, {0}),
    ],
)
def test_bans(bans: Bans, seen: list[int], new: int, wanted: set[int]) -> None:
    assert set(bans.tokens(seen, new, (0,))) == wanted
