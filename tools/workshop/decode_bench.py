"""Tokens per second of decoders with random weights on this GPU, and the bytes that a step reads.

    python -m tercet.tools.workshop.decode_bench [MODEL ...] [--bits 16 4] [--batch 1 8]

The files are `decoder_files`, written to a temporary folder. Times are those of the device for one
step of one token after `position` others, a CUDA graph between two events, and those of the host
from token to scores. The floor is what HBM needs for all weights but the table of embeddings, of
which a step reads a row, and for the caches up to the position.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ... import load
from ...runtime.session.cache_layout import DecoderLayout
from ...runtime.session.static_cache import static_decoder
from ..profile.device_time import device_times
from .decoder_files import SHAPES, Packing, Shape, write

#: Bytes per second of the memory of an H200.
BANDWIDTH = 4.8e12


def floor(shape: Shape, packing: Packing, batch: int, position: int) -> float:
    """Return the seconds in which a step's bytes are read."""
    wide = (shape.heads + 2 * shape.groups) * shape.size
    weights = shape.layers * shape.hidden * (wide + shape.hidden + 3 * shape.inner)
    bits = 16.0 if packing.bits == 16 else packing.bits + 16 / packing.block
    head = shape.hidden * shape.vocabulary * 2
    rows = batch * position * shape.layers * 2 * shape.groups * shape.size
    return (weights * bits / 8 + head + rows * 2) / BANDWIDTH


def measure(
    name: str, packing: Packing, batch: int, position: int, capacity: int, folder: Path
) -> dict[str, Any]:
    """Write, load and time a decoder; return what was seen, times in milliseconds."""
    shape = SHAPES[name]
    path = folder / "decoder.onnx"
    began = time.perf_counter()
    write(path, shape, packing)
    written = time.perf_counter()
    with load(path, backend="cuda") as model:
        layout = DecoderLayout.of(model.imported)
        decoder = static_decoder(model, layout, batch, capacity)
        loaded = time.perf_counter()
        tokens = np.arange(batch * position).reshape(batch, position) % shape.vocabulary
        decoder.step(tokens)
        filled = time.perf_counter()
        times: list[float] = []
        for _ in range(20):
            start = time.perf_counter()
            decoder.step(tokens[:, :1])
            times.append(time.perf_counter() - start)
        decoder.rewind(position)
        decoder.step(tokens[:, :1])
        program = decoder.store.program(1)
        device = device_times(model, program)
        kernels = [row.kernel for row in program.rows if row.kind == "step"]
        decoder.close()
    least = floor(shape, packing, batch, position)
    step = None if device is None else device.median
    return {
        "model": name,
        "bits": packing.bits,
        "block": packing.block,
        "batch": batch,
        "position": position,
        "capacity": capacity,
        "device_ms": None if step is None else step * 1e3,
        "tokens_s": None if step is None else batch / step,
        "host_ms": median(times) * 1e3,
        "floor_ms": least * 1e3,
        "share": None if step is None else least / step,
        "kernels": len(kernels),
        "seconds": {
            "write": written - began,
            "load and plan": loaded - written,
            "prompt": filled - loaded,
        },
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line of JSON for each decoder."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("models", nargs="*", default=["llama-3.2-1b"], metavar="MODEL")
    parser.add_argument("--bits", type=int, nargs="+", default=[16, 4])
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--position", type=int, default=512)
    parser.add_argument("--capacity", type=int, default=2048)
    given = parser.parse_args(arguments)
    for name in given.models:
        for bits in given.bits:
            for batch in given.batch:
                with TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
                    packing = Packing(bits, given.block)
                    row = measure(
                        name, packing, batch, given.position, given.capacity, Path(folder)
                    )
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
