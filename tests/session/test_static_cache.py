"""Caches that stay where they are: tokens are those of caches that are handed from run to run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import onnx
import pytest
from ml_dtypes import finfo
from onnx import helper, numpy_helper

import tercet
from tercet.runtime.ir.dtypes import bfloat16, float16, float32
from tercet.runtime.ir.types import Array
from tercet.runtime.options import Precision
from tercet.runtime.session import static_cache
from tercet.runtime.session.cache_layout import DecoderLayout
from tercet.runtime.session.decoding import Decoder
from tercet.runtime.session.open_decoder import open_decoder
from tercet.runtime.session.opened_caches import StaticCacheDecoder, passed_decoder, static_decoder

from .conftest import OnNumpy

PRODUCERS = Path(__file__).parents[1] / "producers"
#: Without those whose scales depend on how many tokens are read at a time.
DECODERS = sorted(
    path
    for pattern in (
        "*/genai_*.onnx",
        "quantized/decoder_*.onnx",
        "decoders/**/*.onnx",
        "*/torch_llama.onnx",
    )
    for path in PRODUCERS.glob(pattern)
    if path.suffix == ".onnx" and not any(part in path.stem for part in ("dynamic", "uint8"))
)
CAPACITY = 32
HALVES = {"float16": float16, "bfloat16": bfloat16}
PROMPT = np.array([[3, 17, 5, 9]], np.int64)
#: Exporters declare types that their graphs contradict, and one symbol for sizes that differ.
pytestmark = [
    pytest.mark.filterwarnings("ignore::tercet.ModelWarning"),
    pytest.mark.filterwarnings("ignore:a prompt is read token by token:tercet.PerformanceWarning"),
]


def static(model: tercet.Model, capacity: int = CAPACITY, batch: int = 1) -> StaticCacheDecoder:
    return static_decoder(model, DecoderLayout.of(model.imported), batch, capacity)


def said(decoder: Decoder, steps: int) -> tuple[list[int], list[Array]]:
    """Return tokens and scores of greedy steps behind the prompt."""
    ids, tokens, scores = PROMPT, list[int](), list[Array]()
    for _ in range(steps):
        scores.append(decoder.step(ids)[0, -1].astype(np.float64))
        tokens.append(int(scores[-1].argmax()))
        ids = np.array([tokens[-1:]], np.int64)
    return tokens, scores


def allowed(model: tercet.Model, greatest: float) -> float:
    """Return by how much scores may differ: in half precision by two units of the greatest."""
    (logits,) = (info for info in model.outputs if "logits" in info.name)
    return 2 * float(np.finfo(np.float16).eps) * greatest if logits.dtype == float16 else 2e-5


def name_of(path: Path) -> str:
    return "-".join(path.relative_to(PRODUCERS).with_suffix("").parts[1:])


@pytest.fixture
def on(on_numpy: OnNumpy) -> Iterator[Callable[[Path, str], tercet.Model]]:
    """Loads a file on a backend."""
    with ExitStack() as stack:

        def load(path: Path, backend: str) -> tercet.Model:
            if backend == "numpy":
                return on_numpy(path)
            return stack.enter_context(tercet.load(path, backend))

        yield load


def test_there_are_some() -> None:
    assert len(DECODERS) >= 10


@pytest.mark.parametrize("path", DECODERS, ids=name_of)
@pytest.mark.parametrize("backend", ["numpy", pytest.param("cuda", marks=pytest.mark.gpu)], ids=str)
def test_tokens_are_those_of_caches_that_are_handed_on(
    path: Path, backend: str, on: Callable[[Path, str], tercet.Model]
) -> None:
    model = on(path, "numpy")
    with passed_decoder(model, DecoderLayout.of(model.imported), 1, CAPACITY) as plain:
        tokens, scores = said(plain, 9)
    model = on(path, backend)
    with static(model) as decoder:
        assert decoder.length == 0
        found, theirs = said(decoder, 9)
        error = max(float(np.abs(a - b).max()) for a, b in zip(scores, theirs, strict=True))
        assert error <= allowed(model, max(float(np.abs(each).max()) for each in scores))
        assert found == tokens
        decoder.rewind(0)
        assert said(decoder, 5)[0] == tokens[:5]


@pytest.mark.parametrize(("before", "count"), [(13, 3), (5, 9), (12, 2), (16, 3)])
def test_steps_are_not_padded_beyond_a_limit(before: int, count: int, on_numpy: OnNumpy) -> None:
    """Beyond 16 positions, angles of rotations are others."""
    model = on_numpy(PRODUCERS / "decoders" / "genai_phi3long_fp32" / "model.onnx")
    ids = np.arange(3, 3 + before + count)[None]
    layout = DecoderLayout.of(model.imported)
    with static(model) as decoder, passed_decoder(model, layout, 1, CAPACITY) as plain:
        for part in (ids[:, :before], ids[:, before:]):
            np.testing.assert_allclose(decoder.read(part), plain.read(part), atol=2e-5)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "name",
    ["optimum_llama", "optimum_qwen3", "optimum_gpt2", "genai_phi3_fp32", "genai_llama_int4"],
)
@pytest.mark.parametrize("backend", ["numpy", pytest.param("cuda", marks=pytest.mark.gpu)], ids=str)
def test_caches_of_float32_are_in_the_precision_of_steps(
    name: str, backend: str, precision: Precision
) -> None:
    """They hold what steps round to it; what callers see of them is float32."""
    (path,) = (PRODUCERS / "decoders" / name).glob("*.onnx")
    half = HALVES[precision]
    with (
        tercet.load(path, backend, precision=precision) as model,
        passed_decoder(model, DecoderLayout.of(model.imported), 1, CAPACITY) as plain,
        static(model) as decoder,
    ):
        wanted, found = said(plain, 9)[1], said(decoder, 9)[1]
        greatest = max(float(np.abs(each).max()) for each in wanted)
        error = max(float(np.abs(a - b).max()) for a, b in zip(wanted, found, strict=True))
        assert error <= 4 * float(finfo(half).eps) * greatest
        assert {view.type.dtype for view in decoder.store._views.values()} == {half}
        kept = decoder.caches()
        assert {each.dtype for each in kept.values()} == {np.dtype(np.float32)}
        for cache_, other in zip(kept.values(), plain.caches().values(), strict=True):
            np.testing.assert_allclose(cache_, other, 0, 4 * float(finfo(half).eps) * 4)
        decoder.restore(np.zeros((1, decoder.length), np.int64), kept)
        np.testing.assert_array_equal(list(decoder.caches().values()), list(kept.values()))


def test_caches_that_something_reads_as_float32_stay_so() -> None:
    path = PRODUCERS / "decoders" / "genai_phi3_fp32" / "model.onnx"
    kept = ("/model/layers.0/attn/GroupQueryAttention",)
    with (
        tercet.load(path, precision="float16", keep_float32=kept) as model,
        static(model) as decoder,
    ):
        assert {view.type.dtype for view in decoder.store._views.values()} == {float32}


@pytest.mark.parametrize("backend", ["numpy", pytest.param("cuda", marks=pytest.mark.gpu)], ids=str)
@pytest.mark.parametrize("path", DECODERS[::3], ids=name_of)
def test_the_most_likely_token_is_that_of_the_scores(
    path: Path, backend: str, on: Callable[[Path, str], tercet.Model]
) -> None:
    """On a device it is found there; the scores are there as well, whoever asks for them."""
    ids = np.array([[3, 17, 5], [9, 2, 11]])
    model = on(path, backend)
    with static(model, CAPACITY, 2) as greedy, static(model, CAPACITY, 2) as decoder:
        for step in (ids, ids[:, :1], ids[:, 1:]):
            found, scores = greedy.greedy(step), decoder.read(step)
            assert found.tokens.dtype == np.int64
            np.testing.assert_array_equal(found.tokens, scores.argmax(1))
            np.testing.assert_array_equal(found.scores, scores.max(1))
        assert greedy.length == 6


def test_a_step_is_one_plan_for_every_length(on_numpy: OnNumpy) -> None:
    with static(on_numpy(DECODERS[-1])) as decoder:
        said(decoder, 3)
        program = decoder.store.program(1)
        said(decoder, 12)
        assert decoder.store.program(1) is program
        assert {node.kind for node in program.graph.nodes} >= {"TensorScatter", "Attention"}


@pytest.mark.parametrize("name", ["optimum_gptj", "optimum_falcon", "torch_llama"])
def test_rotations_of_exporters_are_one_operator(name: str, on_numpy: OnNumpy) -> None:
    """By neighbours and by halves, of torch.jit's exporter and of torch.export's."""
    (path,) = (path for path in DECODERS if name in (path.stem, path.parent.name))
    with static(on_numpy(path)) as decoder:
        kinds = [node.kind for node in decoder.store.program(1).graph.nodes]
        assert kinds.count("RotaryEmbedding") == 2 * kinds.count("Attention")
        assert "Neg" not in kinds


def test_a_decoder_goes_on_from_where_it_was_rewound_to(
    on_numpy: OnNumpy,
) -> None:
    with static(on_numpy(DECODERS[-1])) as decoder:
        tokens, scores = said(decoder, 12)
        assert decoder.rewind(4 + 5) == 9
        again = decoder.step(np.array([tokens[5:6]], np.int64))
        np.testing.assert_array_equal(again[0, -1], scores[6])


def test_no_more_positions_than_there_is_room_for(on_numpy: OnNumpy) -> None:
    with static(on_numpy(DECODERS[-1]), 8) as decoder:
        said(decoder, 5)
        with pytest.raises(tercet.InputError, match="9 positions; the caches have room for 8"):
            decoder.step(PROMPT[:, :1])
        assert decoder.length == 8


def test_caches_move_to_where_there_is_more_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_cache, "FIRST_ROOM", 8)
    with tercet.load(DECODERS[-1]) as model:
        plain = passed_decoder(model, DecoderLayout.of(model.imported))
        tokens, scores = said(plain, 24)
        with static_decoder(model, DecoderLayout.of(model.imported)) as decoder:
            found, theirs = said(decoder, 24)
            assert found == tokens
            np.testing.assert_allclose(theirs, scores, rtol=2e-4, atol=2e-5)


def test_prompts_of_many_lengths_take_few_plans() -> None:
    with tercet.load(DECODERS[-1]) as model:
        layout = DecoderLayout.of(model.imported)
        plain = passed_decoder(model, layout)
        with static_decoder(model, layout, 1, 64) as decoder:
            made = []
            for count in range(1, 20):
                ids = np.arange(count)[None] % 20
                scores = [each.step(ids) for each in (plain, decoder)]
                assert scores[0].shape == scores[1].shape
                np.testing.assert_allclose(*scores, rtol=2e-4, atol=2e-5)
                scores = [each.step(ids[:, :1]) for each in (plain, decoder)]
                np.testing.assert_allclose(*scores, rtol=2e-4, atol=2e-5)
                made += [count for count, _ in decoder.store._programs]
                plain.rewind(0)
                decoder.rewind(0)
    assert set(made) == {1, 2, 4, 8, 16, 32}


@pytest.mark.parametrize("path", DECODERS, ids=name_of)
def test_scores_of_one_position_are_those_of_all(path: Path, on_numpy: OnNumpy) -> None:
    ids = np.arange(10).reshape(2, 5) % 20
    rows = np.array([4, 2])
    model = on_numpy(path)
    layout = DecoderLayout.of(model.imported)
    with passed_decoder(model, layout, 2) as plain, static(model, CAPACITY, 2) as decoder:
        whole = plain.step(ids)
        if whole.shape[1] == 5:
            found, wanted = decoder.read(ids, rows=rows), whole[[0, 1], rows]
        else:
            with pytest.raises(tercet.InputError, match="of the last position alone"):
                decoder.read(ids, rows=rows)
            decoder.rewind(0)
            found, wanted = decoder.read(ids), whole[:, -1]
        bound = allowed(model, float(np.abs(whole).max()))
        np.testing.assert_allclose(found, wanted, rtol=1e-2, atol=bound)
        found, wanted = decoder.read(ids[:, :1]), plain.step(ids[:, :1])[:, -1]
        np.testing.assert_allclose(found, wanted, rtol=1e-2, atol=bound)


def test_a_prompt_computes_the_scores_of_one_position() -> None:
    with tercet.load(DECODERS[-1]) as model, static(model) as decoder:
        decoder.read(PROMPT)
        graph = decoder.store.program(4).graph
        vocabulary = graph.outputs[decoder.layout.logits.name].tensor.dims[-1]
        rows = [
            value.tensor.dims[-2]
            for node in graph.nodes
            for value in node.outputs
            if value.tensor.dims[-1:] == (vocabulary,)
        ]
        assert rows
        assert set(rows) == {1}
        decoder.read(PROMPT[:, :1])
        assert "GatherND" not in {node.kind for node in decoder.store.program(1).graph.nodes}


def test_sequences_of_a_batch_are_filled_up(subtests: pytest.Subtests, on_numpy: OnNumpy) -> None:
    ids = np.arange(10).reshape(2, 5) % 20
    for path in DECODERS:
        model = on_numpy(path)
        layout = DecoderLayout.of(model.imported)
        batch, *_ = layout.inputs["ids"].shape or (None,)
        if layout.padding is None or layout.step is not None or batch == 1:
            continue
        mask = np.ones((2, 5), np.int64)
        mask[1, slice(2) if layout.padding == "left" else slice(3, None)] = 0
        with subtests.test(name_of(path)), static_decoder(model, layout, 2, 32) as decoder:
            plain = passed_decoder(model, layout, 2, 32)
            there = np.argwhere(mask)
            for step in range(3):
                given = (ids, mask) if step == 0 else (ids[:, step - 1 : step],)
                ours, theirs = (each.step(*given) for each in (decoder, plain))
                if step == 0:
                    ours, theirs = (x[tuple(there.T)] for x in (ours, theirs))
                tolerance = 4e-3 if ours.dtype == np.float16 else 2e-4
                np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("path", DECODERS, ids=name_of)
def test_the_last_position_that_there_is_room_for(path: Path, on_numpy: OnNumpy) -> None:
    model = on_numpy(path)
    plain = passed_decoder(model, DecoderLayout.of(model.imported), 1, 8)
    with static(model, 8) as decoder:
        assert said(decoder, 5)[0] == said(plain, 5)[0]
        assert decoder.length == 8


@pytest.mark.parametrize("path", DECODERS, ids=name_of)
def test_room_for_a_single_position(path: Path, on_numpy: OnNumpy) -> None:
    model = on_numpy(path)
    layout = DecoderLayout.of(model.imported)
    with passed_decoder(model, layout, 1, 1) as plain, static(model, 1) as decoder:
        wanted, found = (each.read(PROMPT[:, :1]) for each in (plain, decoder))
        bound = allowed(model, float(np.abs(wanted).max()))
        np.testing.assert_allclose(found, wanted, rtol=1e-2, atol=bound)


def test_a_model_of_single_tokens_alone(tmp_path: Path) -> None:
    """Two tokens do not fit it, which the file does not declare."""
    source = PRODUCERS / "decoders" / "optimum_llama" / "model.onnx"
    model = onnx.load(source)
    for node in model.graph.node:
        node.output[:] = ["scores" if name == "logits" else name for name in node.output]
    (info,) = (each for each in model.graph.output if each.name == "logits")
    shape = np.array([1, 1, info.type.tensor_type.shape.dim[2].dim_value], np.int64)
    model.graph.initializer.append(numpy_helper.from_array(shape, "single"))
    model.graph.node.append(helper.make_node("Reshape", ["scores", "single"], ["logits"]))
    onnx.save(model, tmp_path / "model.onnx")
    with tercet.load(source) as whole, static(whole) as plain:
        wanted = [plain.step(PROMPT[:, i : i + 1]) for i in range(4)]
    with tercet.load(tmp_path / "model.onnx") as single, open_decoder(single) as decoder:
        found = [decoder.step(PROMPT[:, i : i + 1]) for i in range(4)]
    np.testing.assert_array_equal(found, wanted)
