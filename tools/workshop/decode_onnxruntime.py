"""What onnxruntime needs for the steps of `decode_bench`, on the same files.

It gets what suits it: past and present caches are one buffer, tokens, mask and logits stay on the
device, and runs are launched one after another, with one wait at their end. In the first way the
attention mask is as long as the tokens so far, in the second a run is a replay of a CUDA graph and
the mask has the length of the caches, as in onnxruntime-genai. No token is chosen, which leaves
out a part of tercet's steps.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ...runtime.ir.types import Array
from ..runners.onnxruntime_runner import require
from .decode_page import OnnxruntimeTiming
from .decoder_files import DecoderSizes, Packing

#: Runs that are launched together, and how often.
TOGETHER, REPEATS = 10, 5
#: Runs before the first that is timed: the third records the graph.
WARM = 4
KERNELS, GRAPH = "kernel by kernel", "CUDA graph"
_PRESENT, _PAST = "present.", "past_key_values."


def step_times(
    path: Path,
    shape: DecoderSizes,
    name: str,
    packing: Packing,
    batches: Sequence[int],
    position: int,
    capacity: int,
    provider: str = "cuda",
) -> Iterator[OnnxruntimeTiming]:
    """Yield the times of a step, for each number of sequences and in each way.

    Args:
        path: a file of `decoder_files`.
        shape: its sizes.
        name: of the decoder.
        packing: of its weights.
        batches: numbers of sequences.
        position: number of tokens before the timed one.
        capacity: of the caches, in tokens.
        provider: ``cuda``, or ``cpu``, which has no graphs.

    Raises:
        BackendUnavailable: onnxruntime or its provider is missing.
    """
    ort = require(f"onnxruntime:{provider}")
    ways = (KERNELS, GRAPH) if provider == "cuda" else (KERNELS,)
    session = _session(ort, path, provider, GRAPH in ways)
    for batch in batches:
        bound = _Bound(ort, session, provider, shape, batch, position, capacity)
        for way in ways:
            try:
                seconds = bound.seconds(way)
            except Exception as error:  # what onnxruntime raises has no class in common
                print(f"onnxruntime, {name}, {way}: {error}", file=sys.stderr, flush=True)
                continue
            sizes = name, packing.bits, packing.block, batch, position, capacity
            yield OnnxruntimeTiming(*sizes, way, seconds * 1e3)


def logits_of(path: Path, feeds: Mapping[str, Array], name: str, provider: str = "cuda") -> Array:
    """Return an output of a decoder: `feeds` are arrays on the host.

    Raises:
        BackendUnavailable: onnxruntime or its provider is missing.
    """
    session = _session(require(f"onnxruntime:{provider}"), path, provider, graphs=False)
    (found,) = session.run([name], dict(feeds))
    return np.asarray(found)


def _session(ort: Any, path: Path, provider: str, graphs: bool) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if provider == "cpu":
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    given = {"use_tf32": "0", "enable_cuda_graph": str(int(graphs))}
    both = [("CUDAExecutionProvider", given), "CPUExecutionProvider"]
    return ort.InferenceSession(path, options, providers=both)


class _Bound:
    """A session whose inputs and outputs stay where they are."""

    def __init__(
        self,
        ort: Any,
        session: Any,
        provider: str,
        shape: DecoderSizes,
        batch: int,
        position: int,
        capacity: int,
    ) -> None:
        self._ort, self._session, self._provider = ort, session, provider
        self._shape, self._batch = shape, batch
        self._inputs = list[Any]()
        self._position, self._capacity = position, capacity
        dims = batch, shape.groups, capacity, shape.size
        pasts = [each.name for each in session.get_inputs() if each.name.startswith(_PAST)]
        self._caches = {past: self._put(np.zeros(dims, np.float16)) for past in pasts}

    def seconds(self, way: str) -> float:
        """Return the median seconds of a step.

        Raises:
            Exception: onnxruntime refuses; of which class, it does not say.
        """
        binding, options = self._binding(way), self._ort.RunOptions()
        graph = "-1" if way == KERNELS else str(self._batch)  # a number of its own for each graph
        options.add_run_config_entry("gpu_graph_id", graph)
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        for _ in range(WARM):
            self._session.run_with_iobinding(binding, options)
        binding.synchronize_outputs()
        times = list[float]()
        for _ in range(REPEATS):
            began = time.perf_counter()
            for _ in range(TOGETHER):
                self._session.run_with_iobinding(binding, options)
            binding.synchronize_outputs()
            times.append((time.perf_counter() - began) / TOGETHER)
        return median(times)

    def _put(self, array: Array) -> Any:
        return self._ort.OrtValue.ortvalue_from_numpy(array, self._provider, 0)

    def _binding(self, way: str) -> Any:
        batch, length = self._batch, self._position + 1
        mask = np.zeros((batch, length if way == KERNELS else self._capacity), np.int64)
        mask[:, :length] = 1
        logits = np.zeros((batch, 1, self._shape.vocabulary), np.float16)
        given = (np.ones((batch, 1), np.int64), mask, logits)
        ids, mask_there, logits_there = kept = [self._put(each) for each in given]
        self._inputs += kept  # a recorded graph reads them
        binding = self._session.io_binding()
        binding.bind_ortvalue_input("input_ids", ids)
        binding.bind_ortvalue_input("attention_mask", mask_there)
        binding.bind_ortvalue_output("logits", logits_there)
        for past, cache in self._caches.items():
            binding.bind_ortvalue_input(past, cache)
            binding.bind_ortvalue_output(past.replace(_PAST, _PRESENT, 1), cache)
        return binding
