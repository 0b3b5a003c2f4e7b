"""Measure tokens per second of decoders with random weights on a GPU, against memory bandwidth.

    python -m tercet.tools.workshop.decode_bench [MODEL ...] [--bits 16 4] [--batch 1 8]
    python -m tercet.tools.workshop.decode_bench --pytorch decode.json --output docs/results

The files are those of `decoder_files`, written to a temporary folder. Times are the device time of
one step of one token after `position` others (a CUDA graph between two events), and the host time
between two tokens, greedy and sampled, in steps that feed themselves. The floor is the time that
HBM needs for all weights except the embedding table, of which a step reads one row, and for the
caches up to the position.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
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
from ...runtime.session.decoding import Decoder
from ...runtime.session.sampling import GREEDY, SamplingSettings
from ...runtime.session.static_cache import static_decoder
from ..common.environment import PACKAGES, device_environment
from ..common.results import earlier
from ..profile.device_time import device_times
from ..verdict.accuracy import distance_of, exact_outputs
from .arguments import parser as make_parser
from .decode_page import DecodeTiming, PytorchTiming, read_pytorch, save
from .decoder_files import SHAPES, DecoderSizes, Packing, write

#: What is sampled with, as many do.
SAMPLED = SamplingSettings(0.7, top_k=50, top_p=0.95)
#: Steps of which the median is taken.
STEPS = 21


def step_bytes(shape: DecoderSizes, packing: Packing, batch: int, position: int) -> float:
    """Return the bytes that a step reads at least: weights and caches."""
    wide = (shape.heads + 2 * shape.groups) * shape.size
    weights = shape.layers * shape.hidden * (wide + shape.hidden + 3 * shape.inner)
    bits = 16.0 if packing.bits == 16 else packing.bits + 16 / packing.block
    head = shape.hidden * shape.vocabulary * 2
    rows = batch * position * shape.layers * 2 * shape.groups * shape.size
    return weights * bits / 8 + head + rows * 2


def measure(
    name: str,
    packing: Packing,
    batch: int,
    position: int,
    capacity: int,
    folder: Path,
    check: int,
    backend: str = "cuda",
) -> DecodeTiming:
    """Write, load and time a decoder, and compare the logits of a prompt with float64.

    Args:
        name: among `SHAPES`.
        packing: of the weights.
        batch: number of sequences.
        position: number of tokens before the timed one.
        capacity: capacity of the caches in tokens.
        folder: for the file.
        check: number of prompt tokens to compare; 0 for none.
        backend: the backend that runs it.
    """
    shape = SHAPES[name]
    path = folder / "decoder.onnx"
    began = time.perf_counter()
    write(path, shape, packing)
    written = time.perf_counter()
    with load(path, backend=backend) as model:
        layout = DecoderLayout.of(model.imported)
        decoder = static_decoder(model, layout, batch, capacity)
        loaded = time.perf_counter()
        tokens = np.arange(batch * position).reshape(batch, position) % shape.vocabulary
        decoder.read(tokens)
        filled = time.perf_counter()
        greedy, sampled = (_between(decoder, tokens[:, 0], how) for how in (GREEDY, SAMPLED))
        decoder.read(tokens[:, :1])
        program = decoder.store.program(1)
        device = device_times(model, program)
        kernels = [row.kernel for row in program.rows if row.kind == "step"]
        decoder.rewind(0)
        feeds = decoder.feeds(tokens[:, :check]) if check else {}
        logits = decoder.step(tokens[:, :check]) if check else None
        rate = getattr(model.backends[0].device, "memory_bandwidth", None)
        decoder.close()
    error = None
    if logits is not None:
        exact = exact_outputs(path, feeds, outputs=[layout.logits.name])[layout.logits.name]
        error = distance_of(logits, exact[:, -logits.shape[1] :])
    return DecodeTiming(
        model=name,
        bits=packing.bits,
        block=packing.block,
        batch=batch,
        position=position,
        capacity=capacity,
        device_ms=None if device is None else device.median * 1e3,
        host_ms=greedy * 1e3,
        floor_ms=None if rate is None else step_bytes(shape, packing, batch, position) / rate * 1e3,
        kernels=len(kernels),
        error=error,
        seconds={
            "write": written - began,
            "load and plan": loaded - written,
            "prompt": filled - loaded,
        },
        sampled_ms=sampled * 1e3,
    )


def _between(decoder: Decoder, tokens: Array, sampling: SamplingSettings) -> float:
    """Return the median seconds between two tokens on the host; the decoder is rewound."""
    length, times = decoder.length, list[float]()
    for _ in decoder.follow(tokens, STEPS, sampling=sampling):
        times.append(time.perf_counter())
    decoder.rewind(length)
    return median(np.diff(times))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line of JSON for each decoder; with --output, write the page."""
    parser = make_parser("decode_bench", __doc__)
    parser.add_argument("models", nargs="*", default=["llama-3.2-1b"], metavar="MODEL")
    parser.add_argument("--bits", type=int, nargs="+", default=[16, 4])
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--position", type=int, default=512)
    parser.add_argument("--capacity", type=int, default=2048)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--check", type=int, default=8, help="tokens to compare with float64")
    parser.add_argument("--pytorch", type=Path, help="file of PyTorch's times on this machine")
    given = parser.parse_args(arguments)
    peers = read_pytorch(given.pytorch) if given.pytorch else []
    (backend, *_) = open_backends(given.backend, Options())
    about = device_environment(backend.device, PACKAGES, given.commit)
    about["caches"] = f"room for {given.capacity} positions"
    if (rate := getattr(backend.device, "memory_bandwidth", None)) is not None:
        about["memory bandwidth"] = f"{rate / 1e12:.2f} TB/s by clock and bus width"
    rows: dict[Any, DecodeTiming] = {}
    if given.output:
        file = given.output / "decode.json"
        rows = {row.place: row for row in earlier(file, about, DecodeTiming.from_dict)}
        if not given.pytorch:
            peers = earlier(file, about, lambda entry: PytorchTiming(**entry), "pytorch")
    for name, bits, batch in product(given.models, given.bits, given.batch):
        with TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
            packing, path = Packing(bits, given.block), Path(folder)
            sizes = given.position, given.capacity
            row = measure(name, packing, batch, *sizes, path, given.check, given.backend)
        print(json.dumps(row.to_dict()), flush=True)
        rows[row.place] = row
        if given.output:
            save([rows[place] for place in sorted(rows)], peers, about, given.output)


if __name__ == "__main__":
    main()
