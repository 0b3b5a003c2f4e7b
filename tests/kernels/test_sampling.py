"""Sampling on a GPU: no operator of it is another backend's, and tokens are those of the host."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.numpy import evaluate
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model
from tercet.runtime.session.sampling import SamplingSettings
from tercet.runtime.session.sampling_graph import SamplingGraph

from ..session.test_sampling_graph import HOWS, graph_of, logits_of, sampled
from .dry import launches, planned
from .emulator import needs_compiler


@pytest.mark.parametrize("how", HOWS, ids=str)
def test_every_node_has_a_kernel(how: SamplingSettings) -> None:
    rows = planned(graph_of(SamplingGraph.of(how, decides=False), np.float16)).rows
    assert {row.backend for row in rows if row.kind == "step"} == {"cuda"}


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("how", [HOWS[6], HOWS[9]], ids=str)
def test_tokens_are_those_of_the_host(how: SamplingSettings, emulated: CudaBackend) -> None:
    graph = graph_of(SamplingGraph.of(how), np.float16)
    with Model(graph, [emulated], Options(), evaluate) as model:
        np.testing.assert_array_equal(*sampled(model, how, logits_of(np.float16, 1.0, 5), 5))


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_the_greatest_of_a_vocabulary_are_found_in_two_launches(batch: int) -> None:
    """Those of chunks, and those of these."""
    graph = graph_of(SamplingGraph.of(HOWS[7], decides=False), np.float16, batch, 128256)
    found = [x for x in launches(planned(graph)) if x.file.startswith("reduce/topk")]
    assert [launch.entry for launch in found] == ["top_k_lines", "top_k_lines"]
