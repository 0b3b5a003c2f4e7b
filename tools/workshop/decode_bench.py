"""Measure tokens per second of decoders with random weights on a GPU, against memory bandwidth.

    python -m tercet.tools.workshop.decode_bench [MODEL ...] [--bits 16 4] [--batch 1 8]
    python -m tercet.tools.workshop.decode_bench --pytorch decode.json --output docs/results

The files are those of `decoder_files`, written to a temporary folder. Steps of one token after
`position` others feed themselves. Times are the device's for one greedy step (of several between
two events, which are launched together as `Decoder.follow` launches them ahead), and the host's
between two tokens, greedy and sampled. The floor is the time that
HBM needs for all weights except the embedding table, of which a step reads one row, and for the
caches up to the position. A prompt of one sequence is timed, too, and one of its steps at a late
position. With --onnxruntime cuda, its steps are timed on the same files; see `decode_onnxruntime`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ... import load
from ...backends import open_backends
from ...runtime.ir.types import Array
from ...runtime.options import Options
from ...runtime.session.cache_layout import DecoderLayout
from ...runtime.session.chained_steps import ChainedSteps
from ...runtime.session.decoding import CachedDecoder, Decoder
from ...runtime.session.model import Model
from ...runtime.session.opened_caches import static_decoder
from ...runtime.session.sampling import GREEDY, Following, SamplingSettings
from ...runtime.session.static_cache import StaticCaches
from ...runtime.session.step_inputs import Tokens
from ..common.environment import PACKAGES, device_environment
from ..common.results import earlier
from ..profile.device_time import device_times
from ..profile.peaks import peaks_of
from ..runners.onnxruntime_runner import require
from ..verdict.accuracy import distance_of, exact_outputs
from .arguments import parser as make_parser
from .decode_onnxruntime import logits_of, step_times
from .decode_page import (
    DecodeTiming,
    OnnxruntimeTiming,
    PromptTiming,
    PytorchTiming,
    read_pytorch,
    save,
)
from .decoder_files import SHAPES, DecoderSizes, Packing, write

Timing = DecodeTiming | PromptTiming | OnnxruntimeTiming

#: What is sampled with, as many do.
SAMPLED = SamplingSettings(0.7, top_k=50, top_p=0.95)
#: Steps of which the median is taken, and steps that are timed together on the device.
STEPS, TOGETHER = 21, 4
#: Where errors of onnxruntime stand among those by number of sequences.
_PEER = 0
#: Tokens of the longest prompt that is read to get to a position.
MOST_READ = 4096


def step_bytes(shape: DecoderSizes, packing: Packing, batch: int, position: int) -> float:
    """Return the bytes that a step reads at least: weights and caches.

    Of experts it reads those that independent sequences choose on average; of caches of which every
    other one has a window, all up to the position.
    """
    own = shape.heads * shape.size
    wide = own + 2 * shape.groups * shape.size
    share = shape.chosen / shape.experts if shape.experts else 0.0
    experts = shape.experts * (1 - (1 - share) ** batch) if shape.experts else 1.0
    weights = shape.layers * shape.hidden * (wide + own + 3 * experts * shape.inner)
    bits = 16.0 if packing.bits == 16 else packing.bits + 16 / packing.block
    head = shape.hidden * shape.vocabulary * 2
    rows = batch * position * shape.layers * 2 * shape.groups * shape.size
    return weights * bits / 8 + head + rows * 2


def prompt_flops(shape: DecoderSizes, tokens: int) -> float:
    """Return the operations of a prompt at least, up to the logits of its last position.

    Of the last block, only keys and values are needed of all positions.
    """
    caches, own = 2 * shape.groups * shape.size, shape.heads * shape.size
    each = 3 * shape.inner * (shape.chosen if shape.experts else 1)
    block = shape.hidden * (2 * own + caches + each)
    products = (shape.layers - 1) * block + shape.hidden * caches
    return 2 * tokens * products + (shape.layers - 1) * 2 * tokens**2 * own


@dataclass(frozen=True, slots=True)
class Measurement:
    """What is measured of each decoder.

    Attributes:
        position: number of tokens before the timed one.
        late: the same for one more step of a single sequence; 0 for none.
        prompt: tokens of a prompt of a single sequence; 0 for none.
        capacity: capacity of the caches in tokens.
        check: number of prompt tokens to compare with float64; 0 for none.
        layers: number of blocks of the decoder that is compared; 0 for all.
        backend: the backend that runs it.
        onnxruntime: the provider of onnxruntime that runs it, too; empty for none.
    """

    position: int
    late: int
    prompt: int
    capacity: int
    check: int
    layers: int
    backend: str
    onnxruntime: str = ""

    def rows(
        self, name: str, packing: Packing, batches: Sequence[int], folder: Path
    ) -> Iterator[Timing]:
        """Write and load a decoder, and yield its figures for each number of sequences.

        Args:
            name: among `SHAPES`.
            packing: of the weights.
            batches: numbers of sequences.
            folder: for the file.
        """
        seconds = dict[str, float]()
        errors = self._errors(SHAPES[name], packing, batches, folder, seconds)
        path = folder / "decoder.onnx"
        with _timed(seconds, "write"):
            write(path, SHAPES[name], packing)
        with _timed(seconds, "load"):
            model = load(path, backend=self.backend)
        with model:
            for batch in batches:
                row = self._row(model, batch, name, packing, dict(seconds))
                yield replace(row, error=errors.get(batch), layers=self.layers if errors else 0)
            if self.late:
                late = replace(self, position=self.late, capacity=self.late + STEPS)
                yield late._row(model, 1, name, packing, {})
            if self.prompt:
                yield from self._prompt(model, name, packing)
        if self.onnxruntime:
            where = SHAPES[name], name, packing, batches, self.position, self.capacity
            for peer in step_times(path, *where, self.onnxruntime):
                yield replace(peer, error=errors.get(_PEER) if peer.batch == 1 else None)

    def _errors(
        self,
        shape: DecoderSizes,
        packing: Packing,
        batches: Sequence[int],
        folder: Path,
        seconds: dict[str, float],
    ) -> dict[int, float]:
        """Return the distance of the logits of a prompt from float64, by number of sequences.

        All sequences are this prompt. The decoder has the widths of `shape`, and `layers` blocks.
        At `_PEER` is that of onnxruntime, of one sequence.
        """
        if not self.check:
            return {}
        path = folder / "checked.onnx"
        write(path, replace(shape, layers=self.layers or shape.layers), packing)
        tokens, errors = np.arange(self.check)[None], dict[int, float]()
        with load(path, backend=self.backend) as model:
            layout = DecoderLayout.of(model.imported)
            with static_decoder(model, layout, 1, self.check) as decoder:
                feeds, name = decoder.feeds(tokens), layout.logits.name
            with _timed(seconds, "exact"):
                exact = exact_outputs(path, feeds, outputs=[name])[name]
            if self.onnxruntime:
                logits = logits_of(path, feeds, name, self.onnxruntime)
                errors[_PEER] = distance_of(logits[:, -1:], exact[:, -1:])
            for batch in batches:
                with static_decoder(model, layout, batch, self.capacity) as decoder:
                    logits = decoder.step(np.repeat(tokens, batch, 0))
                wanted = np.broadcast_to(exact[:, -logits.shape[1] :], logits.shape)
                errors[batch] = distance_of(logits, wanted)
        for file in folder.glob(f"{path.name}*"):
            file.unlink()
        return errors

    def _prompt(self, model: Model, name: str, packing: Packing) -> Iterator[PromptTiming]:
        shape, count = SHAPES[name], self.prompt
        tokens = np.arange(count)[None] % shape.vocabulary
        with static_decoder(model, DecoderLayout.of(model.imported), 1, count) as decoder:
            decoder.read(tokens)
            device = device_times(model, decoder.store.program(count), runs=STEPS)
        if device is None:
            return
        options = replace(model.options, precision="float16")
        peak = peaks_of(model.backends, options).flops
        flops, ms = prompt_flops(shape, count), device.median * 1e3
        yield PromptTiming(name, packing.bits, packing.block, count, ms, flops, peak)

    def _row(
        self,
        model: Model,
        batch: int,
        name: str,
        packing: Packing,
        seconds: dict[str, float],
    ) -> DecodeTiming:
        shape = SHAPES[name]
        with _timed(seconds, "plan"):
            layout = DecoderLayout.of(model.imported)
            decoder = static_decoder(model, layout, batch, self.capacity)
        with decoder:
            count = batch * self.position
            tokens = np.arange(count).reshape(batch, self.position) % shape.vocabulary
            with _timed(seconds, "prompt"):
                _read(decoder, tokens)
            greedy, sampled = (_between(decoder, tokens[:, 0], how) for how in (GREEDY, SAMPLED))
            device = _device_seconds(model, decoder, tokens[:, 0])
            program = decoder.store.program(1)
            kernels = [row.kernel for row in program.rows if row.kind == "step"]
        rate = getattr(model.backends[0].device, "memory_bandwidth", None)
        floor = None if rate is None else step_bytes(shape, packing, batch, self.position) / rate
        return DecodeTiming(
            model=name,
            bits=packing.bits,
            block=packing.block,
            batch=batch,
            position=self.position,
            capacity=self.capacity,
            device_ms=None if device is None else device * 1e3,
            host_ms=greedy * 1e3,
            floor_ms=None if floor is None else floor * 1e3,
            kernels=len(kernels),
            error=None,
            seconds=seconds,
            sampled_ms=sampled * 1e3,
        )


def _read(decoder: CachedDecoder[StaticCaches], tokens: Array) -> None:
    """Read a prompt; where it is long, take zeros for what the caches would hold."""
    if tokens.shape[1] <= MOST_READ:
        decoder.read(tokens)
        return
    length = tokens.shape[1]
    caches = {
        each.past: np.zeros(each.sizes(decoder.batch, length), each.dtype)
        for each in decoder.layout.caches
    }
    decoder.restore(tokens, caches)


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Note the seconds that something takes."""
    began = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - began


def _between(decoder: Decoder, tokens: Array, sampling: SamplingSettings) -> float:
    """Return the median seconds between two tokens on the host; the decoder is rewound."""
    length, times = decoder.length, list[float]()
    for _ in decoder.follow(tokens, STEPS, sampling=sampling):
        times.append(time.perf_counter())
    decoder.rewind(length)
    return median(np.diff(times))


def _device_seconds(
    model: Model, decoder: CachedDecoder[StaticCaches], tokens: Array
) -> float | None:
    """Return the median time of a device for a step that feeds itself; None on the host."""
    read, device = Tokens.dummy(decoder.batch, decoder.length), model.backends[0].device
    timed, times = getattr(device, "time", None), list[float]()
    for _ in range(STEPS):
        chain = decoder.store.chained(read, tokens, Following(), TOGETHER)
        if chain is None or timed is None:
            return None

        def launch(_: object, chain: ChainedSteps = chain) -> None:
            for _ in range(TOGETHER):
                chain.launch()

        times.append(timed(launch, chain.stream) / TOGETHER)
        chain.drain()
    return median(times)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line of JSON for each decoder; with --output, write the page."""
    parser = make_parser("decode_bench", __doc__)
    parser.add_argument("models", nargs="*", default=["llama-3.2-1b"], metavar="MODEL")
    parser.add_argument("--bits", type=int, nargs="+", default=[16, 4])
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--position", type=int, default=512)
    parser.add_argument("--late", type=int, default=32000, help="a late position; 0 for none")
    parser.add_argument("--prompt", type=int, default=2048, help="tokens; 0 for none")
    parser.add_argument("--capacity", type=int, default=2048)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--check", type=int, default=8, help="tokens to compare with float64")
    parser.add_argument(
        "--check-layers", type=int, default=0, help="blocks of the decoder compared; 0 for all"
    )
    parser.add_argument("--pytorch", type=Path, help="file of PyTorch's times on this machine")
    parser.add_argument(
        "--onnxruntime",
        default="",
        metavar="PROVIDER",
        help="time this provider of onnxruntime on the same files, too: cuda or cpu",
    )
    given = parser.parse_args(arguments)
    peers = read_pytorch(given.pytorch) if given.pytorch else []
    (backend, *_) = open_backends(given.backend, Options())
    about = device_environment(backend.device, PACKAGES, given.commit)
    about["caches"] = f"room for {given.capacity} positions"
    if (rate := getattr(backend.device, "memory_bandwidth", None)) is not None:
        about["memory bandwidth"] = f"{rate / 1e12:.2f} TB/s by clock and bus width"
    if given.onnxruntime:  # of its packages, of which several may be installed, the one in use
        about["onnxruntime"] = require(f"onnxruntime:{given.onnxruntime}").__version__
    kinds = DecodeTiming, PromptTiming, OnnxruntimeTiming
    found: dict[type[Timing], dict[Any, Any]] = {kind: {} for kind in kinds}
    if given.output:
        file = given.output / "decode.json"
        for kind, part in zip(kinds, ("results", "prompts", "onnxruntime"), strict=True):
            found[kind] = {row.place: row for row in earlier(file, about, kind.from_dict, part)}
        if not given.pytorch:
            peers = earlier(file, about, lambda entry: PytorchTiming(**entry), "pytorch")
    measured = Measurement(
        *(given.position, given.late, given.prompt, given.capacity, given.check),
        *(given.check_layers, given.backend, given.onnxruntime),
    )
    for name, bits in product(given.models, given.bits):
        with TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
            packing = Packing(bits, given.block)
            for row in measured.rows(name, packing, given.batch, Path(folder)):
                print(json.dumps(row.to_dict()), flush=True)
                found[type(row)][row.place] = row
                if given.output:
                    steps, prompts, others = (
                        [rows[place] for place in sorted(rows)] for rows in found.values()
                    )
                    save(steps, peers, about, given.output, prompts, others)


if __name__ == "__main__":
    main()
