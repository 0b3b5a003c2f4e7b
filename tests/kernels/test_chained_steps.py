"""Decoders that feed themselves on a GPU: what the driver is asked for, and the tokens.

The driver is a fake that computes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import tercet
from tercet.runtime.session.cache_layout import DecoderLayout
from tercet.runtime.session.opened_caches import StaticCacheDecoder, static_decoder

from .emulator import needs_compiler
from .fake_driver import FAKE, FakeCompiler, Gate, plant

pytestmark = [pytest.mark.slow, needs_compiler]

LLAMA = Path(__file__).parents[1] / "producers" / "transformers" / "genai_llama_fp32.onnx"
PROMPT = np.array([[3, 17, 5, 9]])


@dataclass
class Log(Gate):
    """Notes the calls in their order."""

    order: list[str] = field(default_factory=list[str])

    def ask(self, name: str) -> Any:
        self.order.append(name)
        return super().ask(name)


def opened(model: tercet.Model) -> StaticCacheDecoder:
    return static_decoder(model, DecoderLayout.of(model.imported), 1, 32)


def test_the_next_step_is_launched_before_the_host_waits(
    libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tercet.load(LLAMA) as model, opened(model) as decoder:
        first = decoder.greedy(PROMPT).tokens
        wanted = [tokens.tolist() for tokens in decoder.follow(first, 9)]
    log = Log()
    plant(FakeCompiler(libraries, FAKE), log, monkeypatch.setattr)
    with tercet.load(LLAMA, "cuda") as model, opened(model) as decoder:
        decoder.greedy(PROMPT)
        following = decoder.follow(first, 9)
        found = [next(following).tolist()]
        log.order.clear()
        found += [tokens.tolist() for tokens in following]
        calls = [name for name in log.order if name != "cuCtxSetCurrent"]
        launch = ["cuGraphLaunch", "cuEventRecord"]  # which writes its token to the host's memory
        assert calls == 7 * [*launch, "cuEventSynchronize"] + ["cuEventSynchronize"]
        assert found == wanted


@pytest.mark.parametrize("name", ["optimum_t5", "optimum_bart"])
def test_tokens_behind_an_encoder(
    name: str, libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of texts that are padded, the second with the plans of the first."""
    folder = LLAMA.parents[1] / "encoders" / name
    prompts = [[9, 8, 1], [0, 259, 71, 30, 99, 7, 1]]
    with tercet.Generator(folder) as generator:
        wanted = [generator.generate_ids(ids, max_new_tokens=6).ids for ids in prompts]
    plant(FakeCompiler(libraries, FAKE), Gate(), monkeypatch.setattr)
    with tercet.Generator(folder, "cuda") as generator:
        assert [generator.generate_ids(ids, max_new_tokens=6).ids for ids in prompts] == wanted
