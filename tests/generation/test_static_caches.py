"""The generator with caches that stay in place, beside one that hands them from run to run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tercet
from tercet import Generator
from tercet.generation import loading as module
from tercet.runtime.session.cache_layout import DecoderLayout
from tercet.runtime.session.decoding import CachedDecoder, Decoder
from tercet.runtime.session.opened_caches import passed_decoder

from .folders import DECODERS

FILES = sorted(DECODERS.rglob("*.onnx"))
#: Without the one whose steps of several tokens read nothing else: runs cannot take its caches.
CHUNKED = [path for path in FILES if "masked" not in str(path)]
PROMPT = [0, 259, 71, 223, 287, 278]


def handed_on(
    model: tercet.Model,
    *,
    batch: int,
    capacity: int | None,
    pairs: Mapping[str, str],
    embed: Any,
) -> Decoder:
    layout = DecoderLayout.of(model.imported, pairs=pairs)
    return passed_decoder(model, layout, batch, capacity, embed)


def said(path: Path) -> list[Any]:
    """Tokens of a prompt, of one with the same beginning, and of two together, each in parts."""
    with Generator(path, reuse=True, prefill_chunk=4) as generator:
        generator.folder = type(generator.folder)(path, path.parent)  # no token ends it
        return [
            generator.generate_ids(PROMPT, max_new_tokens=12).ids,
            generator.generate_ids([*PROMPT[:4], 9, 8], max_new_tokens=4).ids,
            generator.generate_ids([PROMPT, PROMPT[:3]], max_new_tokens=4).ids,
        ]


@pytest.mark.parametrize("path", CHUNKED, ids=lambda p: p.relative_to(DECODERS).as_posix())
def test_tokens_are_those_of_caches_that_are_handed_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = said(path)
    monkeypatch.setattr(module, "open_decoder", handed_on)
    assert found == said(path)


def test_a_model_that_takes_several_tokens_only_at_first() -> None:
    """In parts and at once, alone and together, as the prompt is read token by token."""
    path = DECODERS / "genai_masked_fp16" / "model.onnx"
    first, second, both = said(path)
    with Generator(path) as generator:
        generator.folder = type(generator.folder)(path, path.parent)
        assert generator.generate_ids(PROMPT, max_new_tokens=12).ids == first
        assert generator.generate_ids([*PROMPT[:4], 9, 8], max_new_tokens=4).ids == second
        assert generator.generate_ids([PROMPT, PROMPT[:3]], max_new_tokens=4).ids == both
    assert both[0] == first[0][:4]


@pytest.mark.parametrize("rank", [2, 3])
def test_models_that_give_the_last_scores_alone(tmp_path: Path, rank: int) -> None:
    """Prompts of several lengths are padded behind, where nobody gets scores of the last token."""
    source = DECODERS / "genai_qwen2_fp16" / "model.onnx"
    model = onnx.load(source)
    for node in model.graph.node:
        node.output[:] = ["all" if name == "logits" else name for name in node.output]
    last = np.array(-1 if rank == 2 else [-1], np.int64)
    model.graph.initializer.append(numpy_helper.from_array(last, "last"))
    model.graph.node.append(helper.make_node("Gather", ["all", "last"], ["logits"], axis=1))
    (info,) = (each for each in model.graph.output if each.name == "logits")
    dims = info.type.tensor_type.shape.dim
    if rank == 2:
        del dims[1]
    else:
        dims[1].dim_value = 1
    onnx.save(model, tmp_path / "model.onnx")
    prompts = [PROMPT, PROMPT[:2], [9, 8, 7]]
    for how in ({}, {"temperature": 0.9, "top_k": 20, "seed": 4}):
        with Generator(source) as generator:
            wanted = generator.generate_ids(prompts, max_new_tokens=8, **how).ids
        with Generator(tmp_path / "model.onnx") as generator:
            assert generator.layout.gives_last
            decoder = generator._writer.opened(len(prompts))
            assert isinstance(decoder, CachedDecoder)
            decoder.store.chains = True  # as on a device
            assert generator.generate_ids(prompts, max_new_tokens=8, **how).ids == wanted


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:a prompt is read token by token:tercet.PerformanceWarning")
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(DECODERS).as_posix())
def test_tokens_on_a_device_are_those_of_the_host(path: Path) -> None:
    with Generator(path) as generator:
        wanted = generator.generate_ids(PROMPT, max_new_tokens=16).ids
    with Generator(path, "cuda") as generator:
        assert generator.generate_ids(PROMPT, max_new_tokens=16).ids == wanted
