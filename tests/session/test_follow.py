"""Decoders that feed themselves: tokens are those of a host that reads one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import tercet
from tercet.runtime.ir.types import Array
from tercet.runtime.session import static_cache
from tercet.runtime.session.bans import TokenBans
from tercet.runtime.session.cache_layout import DecoderLayout
from tercet.runtime.session.chained_steps import ChainedSteps
from tercet.runtime.session.decoding import Decoder
from tercet.runtime.session.open_decoder import open_decoder
from tercet.runtime.session.opened_caches import StaticCacheDecoder, static_decoder
from tercet.runtime.session.sampling import NOT_FINITE, SamplingSettings

PRODUCERS = Path(__file__).parents[1] / "producers"
#: Padding in front and behind, positions as an input and counted, branches, windows, sinks.
FILES = [
    PRODUCERS / name
    for name in (
        "decoders/genai_qwen2_fp16/model.onnx",
        "decoders/optimum_gpt2_merged/decoder_model_merged.onnx",
        "decoders/transformersjs_llama/onnx/model_q4.onnx",
        "transformers/genai_gptoss_fp32.onnx",
        "converted/torch_llama.onnx",
    )
]
ALL = [*PRODUCERS.glob("decoders/**/*.onnx"), *PRODUCERS.glob("*/genai*.onnx")]
ON_GPU = [pytest.param("cuda", path, marks=pytest.mark.gpu) for path in sorted(ALL)]
CASES = [*(("numpy", path) for path in FILES), *ON_GPU]
LLAMA = FILES[2]
PROMPT = np.array([[3, 17, 5, 9]])
#: Exporters declare types that their graphs contradict, and one symbol for sizes that differ.
pytestmark = pytest.mark.filterwarnings("ignore::tercet.ModelWarning")


def opened(model: tercet.Model, capacity: int | None = 32, batch: int = 1) -> StaticCacheDecoder:
    """Return a decoder that feeds itself, on the host, too."""
    decoder = static_decoder(model, DecoderLayout.of(model.imported), batch, capacity)
    decoder.store.chains = True
    return decoder


def one_by_one(decoder: Decoder, first: Array, steps: int) -> list[list[int]]:
    """Return the tokens of greedy steps behind a first one."""
    found: list[list[int]] = []
    for _ in range(steps):
        first = decoder.greedy(first[:, None]).tokens
        found.append(first.tolist())
    return found


def followed(decoder: Decoder, first: Array, steps: int, **how: Any) -> list[list[int]]:
    return [tokens.tolist() for tokens in decoder.follow(first, steps, **how)]


def prompt_for(decoder: Decoder) -> Array:
    return PROMPT[:, : decoder.layout.step]


@pytest.mark.parametrize(("backend", "path"), CASES, ids=str)
def test_tokens_are_those_of_single_steps(backend: str, path: Path) -> None:
    with tercet.load(path, backend) as model, opened(model) as decoder:
        first = decoder.greedy(prompt_for(decoder)).tokens
        start = decoder.length
        found = followed(decoder, first, 12, ahead=3)
        assert decoder.store.chains
        assert decoder.length == start + 12
        decoder.rewind(0)
        decoder.greedy(prompt_for(decoder))
        assert found == one_by_one(decoder, first, 12)


@pytest.mark.parametrize("ids", [PROMPT, np.array([[3, 17, 5, 9], [8, 4, 9, 1]])], ids=len)
@pytest.mark.parametrize("backend", ["numpy", pytest.param("cuda", marks=pytest.mark.gpu)], ids=str)
@pytest.mark.parametrize(
    "how",
    [
        SamplingSettings(0.0, repetition_penalty=1.5),
        SamplingSettings(1.0, seed=7),
        SamplingSettings(0.8, top_k=20, top_p=0.9, min_p=0.02, repetition_penalty=1.3, seed=3),
    ],
    ids=["penalty", "temperature", "all"],
)
def test_a_device_samples_the_tokens_of_the_host(
    how: SamplingSettings, backend: str, ids: Array
) -> None:
    with (
        tercet.load(LLAMA, backend) as model,
        opened(model, 32, len(ids)) as decoder,
        opened(model, 32, len(ids)) as plain,
    ):
        plain.store.chains = False
        found: list[list[list[int]]] = []
        for each in (decoder, plain):
            first = each.greedy(ids).tokens
            found.append(followed(each, first, 9, sampling=how, drawn=1))
            first = np.array(found[-1][-1])
            found[-1] += followed(each, first, 6, sampling=how, drawn=10)
        assert decoder.store.chains
        assert found[0] == found[1]


#: Files with tokens that they would choose, and that are forbidden.
BANS = {
    "words": (LLAMA, TokenBans((39, 2000), ((61,), (76, 114), (5, 9, 17, 64), (0,) * 20)), ()),
    "ends": (LLAMA, TokenBans(ends=(39, 97, 61, 76)), (9, 6)),
    "tokens": (LLAMA, TokenBans(repeated=1), ()),
    "pairs": (LLAMA, TokenBans(repeated=2), ()),
    "all": (FILES[0], TokenBans((249,), ((115, 138), (8,)), 2, (97, 192)), (9, 9)),
    "longer than the text": (LLAMA, TokenBans(repeated=60), ()),
}


@pytest.mark.parametrize("backend", ["numpy", pytest.param("cuda", marks=pytest.mark.gpu)], ids=str)
@pytest.mark.parametrize(("path", "bans", "least"), BANS.values(), ids=BANS)
def test_a_device_forbids_the_tokens_of_the_host(
    path: Path, backend: str, bans: TokenBans, least: tuple[int, ...]
) -> None:
    """With padding, and with draws from the tokens that are left."""
    ids = np.array([[3, 17, 5, 9, 17], [8, 4, 9, 4, 9]])
    with (
        tercet.load(path, backend) as model,
        opened(model, 32, 2) as decoder,
        opened(model, 32, 2) as plain,
    ):
        plain.store.chains = False
        is_left = decoder.padding == "left"
        mask = np.ones_like(ids)
        mask[1, slice(2) if is_left else slice(3, None)] = 0
        last = np.array([4, 4 if is_left else 2])
        for sampling in (SamplingSettings(), SamplingSettings(2.0, repetition_penalty=1.2)):
            found: list[list[list[int]]] = []
            for each in (decoder, plain):
                each.rewind(0)
                first = each.greedy(ids, mask, last).tokens
                how: dict[str, Any] = {"sampling": sampling, "bans": bans, "least": least}
                found.append(followed(each, first, 12, **how))
            assert found[0] == found[1]
            for row, tokens in enumerate(zip(*found[0], strict=True)):
                seen = [*ids[row][mask[row] == 1].tolist(), int(first[row])]
                for token in tokens:
                    assert token not in bans.tokens(seen, least[row] if least else 0)
                    seen.append(token)
        assert decoder.store.chains


def test_nothing_is_left_to_choose_from() -> None:
    bans = TokenBans(always=tuple(range(4096)))
    with tercet.load(LLAMA) as model, opened(model) as decoder:
        first = decoder.greedy(PROMPT).tokens
        assert followed(decoder, first, 2, bans=bans) == [[NOT_FINITE], [NOT_FINITE]]


def test_steps_are_launched_before_the_tokens_of_those_before_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    for name in ("launch", "take", "drain"):
        real = getattr(ChainedSteps, name)

        def noted(self: ChainedSteps, name: str = name, real: Any = real) -> Any:
            done.append(name)
            return real(self)

        monkeypatch.setattr(ChainedSteps, name, noted)
    with tercet.load(LLAMA) as model, opened(model) as decoder:
        first = decoder.greedy(PROMPT).tokens
        following = decoder.follow(first, 20)
        next(following)
        next(following)
        following.close()
        assert done[-6:] == ["launch", "launch", "take", "launch", "take", "drain"]
        done.clear()
        followed(decoder, first, 5, ahead=4)
        assert done[-11:] == ["launch"] * 5 + ["take"] * 5 + ["drain"]


def test_what_was_read_too_far_is_forgotten() -> None:
    with tercet.load(LLAMA) as model, opened(model) as decoder, opened(model) as plain:
        first = decoder.greedy(PROMPT).tokens
        plain.greedy(PROMPT)
        wanted = one_by_one(plain, first, 3)
        following = decoder.follow(first, ahead=5)
        assert [next(following).tolist() for _ in range(3)] == wanted
        assert decoder.length == 7
        other = np.array([[8, 1]])
        np.testing.assert_array_equal(decoder.step(other), plain.step(other))
        assert decoder.length == plain.length == 9
        with pytest.raises(StopIteration):
            next(following)
        for name, cache in plain.caches().items():
            assert cache.any()
            np.testing.assert_array_equal(decoder.caches()[name], cache)


def test_caches_that_are_full_move(monkeypatch: pytest.MonkeyPatch) -> None:
    with tercet.load(LLAMA) as model, opened(model) as plain:
        monkeypatch.setattr(static_cache, "FIRST_ROOM", 8)
        with opened(model, None) as decoder:
            first = decoder.greedy(PROMPT).tokens
            plain.greedy(PROMPT)
            assert followed(decoder, first, 25) == one_by_one(plain, first, 25)


def test_no_further_than_there_is_room() -> None:
    with tercet.load(LLAMA) as model, opened(model, 9) as decoder:
        following = decoder.follow(decoder.greedy(PROMPT).tokens)
        found = [next(following).tolist() for _ in range(5)]
        with pytest.raises(tercet.InputError, match="10 positions; the caches have room for 9"):
            next(following)
        assert len(found) == 5
        assert decoder.length == 9


@pytest.mark.parametrize("path", [FILES[0], LLAMA], ids=["behind", "in front"])
def test_sequences_of_several_lengths(path: Path) -> None:
    ids = np.array([[3, 17, 5, 9, 2], [8, 4, 6, 1, 7]])
    mask = np.ones_like(ids)
    with tercet.load(path) as model, opened(model, 32, 2) as decoder, opened(model) as single:
        is_left = decoder.padding == "left"
        mask[1, slice(2) if is_left else slice(3, None)] = 0
        last = np.array([4, 4 if is_left else 2])
        first = decoder.greedy(ids, mask, last).tokens
        found = followed(decoder, first, 10)
        assert decoder.store.chains
        for row in range(2):
            single.rewind(0)
            alone = single.greedy(ids[row][mask[row] == 1][None]).tokens
            assert alone == first[row]
            assert one_by_one(single, alone, 10) == [[tokens[row]] for tokens in found]


def test_caches_that_cannot_go_back_are_not_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DecoderLayout, "can_rewind", property(lambda _: False))
    with tercet.load(LLAMA) as model, opened(model) as decoder:
        first = decoder.greedy(PROMPT).tokens
        wanted = followed(decoder, first, 4, ahead=3)
        assert [each.depth for each in decoder.store._chained.values()] == [1]
    monkeypatch.undo()
    with tercet.load(LLAMA) as model, opened(model) as decoder:
        decoder.greedy(PROMPT)
        assert followed(decoder, first, 4) == wanted


def counting(tmp_path: Path) -> Path:
    """Return a decoder that counts, and has no scores behind 5."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (int64[b,n] input_ids, float[b,2,p,4] past_key)
        => (float[b,n,8] logits, float[b,2,t,4] present_key)
        <int64[4] sizes = {0, 0, 2, 4}> {
          logits = Gather (scores, input_ids)
          rows = Reshape (logits, sizes)
          keys = Transpose <perm = [0, 2, 1, 3]> (rows)
          present_key = Concat <axis = 2> (past_key, keys)
        }"""
    )
    scores = np.roll(np.eye(8, dtype=np.float32), 1, 1)
    scores[5, 2] = np.nan
    model.graph.initializer.append(numpy_helper.from_array(scores, "scores"))
    onnx.save(model, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.mark.parametrize("chains", [False, True], ids=["host", "device"])
def test_scores_that_are_not_finite(tmp_path: Path, chains: bool) -> None:
    with tercet.load(counting(tmp_path)) as model, opened(model, 16, 2) as decoder:
        decoder.store.chains = chains
        found = followed(decoder, np.array([3, 1]), 3)
        assert decoder.store.chains is chains
        assert found == [[4, 2], [5, 3], [NOT_FINITE, 4]]


@pytest.mark.parametrize("how", [{"limit": -1}, {"ahead": -1}, {"limit": 1.5}])
def test_numbers_of_steps_that_are_none(how: dict[str, Any]) -> None:
    with (
        tercet.load(LLAMA) as model,
        open_decoder(model) as decoder,
        pytest.raises(tercet.UsageError, match=next(iter(how))),
    ):
        decoder.follow(np.array([3]), **how)


def test_tokens_of_another_shape() -> None:
    with (
        tercet.load(LLAMA) as model,
        open_decoder(model) as decoder,
        pytest.raises(tercet.InputError, match=r"int64\[2, 1\]: expected int64 \[1, n\]"),
    ):
        decoder.follow(np.array([3, 4]))
