"""Measure what overlapping copies and computation gains for a stream of batches on a GPU.

python -m tercet.tools.workshop.pipeline [MODEL.onnx] [--backend cuda] [--shape x=32x3x224x224]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import ModelProto, numpy_helper
from onnx.parser import parse_model
from rich.console import Console

from ...api import load
from ...runtime.errors import TercetError, UsageError
from ...runtime.ir.types import Array, TensorType
from ...runtime.plan.backend import View
from ...runtime.plan.host import HOST, HostBuffer
from ...runtime.session.bound_plan import BoundModel
from ...runtime.session.model import Model
from ...runtime.session.pipeline import Pipeline
from ..common.console import grid, ms_text, open_console, print_json
from ..common.inputs import InputRequest, make_inputs
from .lifecycle import show_lifecycle, trace_lifecycle

if TYPE_CHECKING:
    from ...backends.cuda.device import CudaDevice
    from ...backends.cuda.driver.streams import CudaStream

BATCHES = 8
REPEAT = 5

#: The ways, in the order of the table, and what each of them is.
WAYS = {
    "pageable": "one batch at a time, from and to ordinary memory",
    "pinned": "one batch at a time, from and to page-locked memory",
    "overlapped": "copies of other batches while one is worked on, page-locked memory",
    "staged": "the same from ordinary memory to new arrays, which the host copies",
}

#: A batch whose copies take about as long as the work on it, on a GPU with PCIe 5.
_BALANCED = """<ir_version: 10, opset_import: ["": 22]>
balanced (float[8192, 1024] x) => (float[8192, 1024] y) { a = MatMul (x, w)  y = Relu (a) }"""


@dataclass(frozen=True, slots=True)
class PipelineTimes:
    """How long a stream of batches takes; all times in seconds, medians.

    Attributes:
        batches: how many.
        sent: bytes of a batch's inputs.
        received: bytes of its results.
        upload: of a single batch, from page-locked memory.
        compute: of a single batch.
        download: of a single batch.
        together: all uploads, computations and downloads side by side, none of which waits for
            another: copies in both directions and kernels share the memory and the bus.
        totals: of all batches, by way; see `WAYS`.
        weights: bytes of the model's constants on the device.
        reupload: to copy these from page-locked memory, as a run does that does not keep them.
        reupload_pageable: the same from ordinary memory.
    """

    batches: int
    sent: int
    received: int
    upload: float
    compute: float
    download: float
    together: float
    totals: Mapping[str, float]
    weights: int
    reupload: float
    reupload_pageable: float

    @property
    def stages(self) -> tuple[float, float, float]:
        """Upload, compute and download of one batch."""
        return self.upload, self.compute, self.download

    @property
    def floor(self) -> float:
        """The shortest possible time: all stages side by side, and once those that wait."""
        longest = max(self.stages)
        return max(self.together, longest * self.batches) + sum(self.stages) - longest

    @property
    def ratio(self) -> float:
        """Overlapped time over that floor."""
        return self.totals["overlapped"] / self.floor

    @property
    def hidden(self) -> float:
        """The share of what can be hidden behind the longest stage that is."""
        alone = sum(self.stages) * self.batches
        return (alone - self.totals["overlapped"]) / (alone - self.floor)

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON, with the floor and what follows from it."""
        found = {**asdict(self), "totals": dict(self.totals)}
        return found | {"floor": self.floor, "ratio": self.ratio, "hidden": self.hidden}


def measure_pipeline(
    model: Model, batch: Mapping[str, Array], batches: int = BATCHES, repeat: int = REPEAT
) -> PipelineTimes:
    """Return how long a stream of equal batches takes, in every way.

    Args:
        model: on a CUDA device, one plan.
        batch: its inputs.
        batches: how many.
        repeat: how often each way is measured.

    Raises:
        UsageError: the model is not on a CUDA device.
    """
    measurement = _Measurement(model, batch, batches, repeat)
    shapes = {name: data.shape for name, data in batch.items()}
    with model.bind(shapes) as bound:
        stages, totals, received = measurement.one_at_a_time(bound)
        alone = [measurement.seconds_alone(stage) for stage in stages]
        together, overlapped = measurement.overlapped(stages)
    weights = model.memory().weights[model.device]
    again, again_pageable = measurement.copies(weights)
    return PipelineTimes(
        batches=batches,
        sent=sum(data.nbytes for data in batch.values()),
        received=received,
        upload=alone[0],
        compute=alone[1],
        download=alone[2],
        together=together,
        totals=totals | overlapped,
        weights=weights,
        reupload=again,
        reupload_pageable=again_pageable,
    )


Stage = Callable[[Any], None]
Stages = tuple[Stage, ...]


class _Measurement:
    def __init__(self, model: Model, batch: Mapping[str, Array], batches: int, repeat: int) -> None:
        device = model.backends[0].device
        if not hasattr(device, "exchange"):
            raise UsageError(f"'{model.backend}' runs on the host; there is nothing to overlap")
        self.device: CudaDevice = device  # type: ignore[assignment]  # only CUDA's exchanges arrays
        self.model, self.batches, self.repeat = model, batches, repeat
        self.pageable = {name: data.copy() for name, data in batch.items()}
        self.pinned = {name: self._pinned(data) for name, data in batch.items()}
        self.stream, *self.streams = (self.device.stream() for _ in range(4))

    def _pinned(self, data: Array) -> Array:
        memory = self.device.staging(data.nbytes).memory
        copy = memory.view(data.dtype).reshape(data.shape)
        copy[...] = data
        return copy

    def one_at_a_time(self, bound: BoundModel) -> tuple[Stages, dict[str, float], int]:
        """Return the stages, the times of the first two ways, and the bytes of results."""
        ordinary = {name: there.numpy() for name, there in bound.outputs.items()}
        locked = {name: self._pinned(data) for name, data in ordinary.items()}

        def compute(stream: CudaStream) -> None:
            bound.run(stream=stream.handle)

        def way(sent: dict[str, Array], received: dict[str, Array]) -> Stages:
            upload = self._copies((bound.inputs[n].elements, _view(d)) for n, d in sent.items())
            results = ((_view(d), bound.outputs[n].elements) for n, d in received.items())
            return upload, compute, self._copies(results)

        def total(stages: Stages) -> float:
            def run() -> None:
                for _ in range(self.batches):
                    for stage in stages:
                        stage(self.stream)
                    self.stream.synchronize()

            return self._seconds(run)[0]

        stages = way(self.pinned, locked)
        totals = {"pageable": total(way(self.pageable, ordinary)), "pinned": total(stages)}
        nbytes = sum(data.nbytes for data in ordinary.values())
        return stages, totals, nbytes

    def _copies(self, pairs: Iterable[tuple[View, View]]) -> Stage:
        both = tuple(pairs)

        def copy(stream: CudaStream) -> None:
            for target, source in both:
                self.device.exchange.copy(target, source, stream)

        return copy

    def overlapped(self, stages: Stages) -> tuple[float, dict[str, float]]:
        """Return the time of all stages side by side, and those of the last two ways.

        The first is measured in turns with what overlaps: clocks, and others on the bus, change.
        """
        pinned, pageable = ([data] * self.batches for data in (self.pinned, self.pageable))
        with self.model.pipeline(copy=False) as pipeline:
            together, overlapped = self._seconds(
                partial(self._side_by_side, stages), partial(_stream, pipeline, pinned)
            )
        with self.model.pipeline(copy=True) as pipeline:
            (staged,) = self._seconds(partial(_stream, pipeline, pageable))
        return together, {"overlapped": overlapped, "staged": staged}

    def _side_by_side(self, stages: Stages) -> None:
        for stage, stream in zip(stages, self.streams, strict=True):
            for _ in range(self.batches):
                stage(stream)
        for stream in self.streams:
            stream.synchronize()

    def copies(self, nbytes: int) -> tuple[float, float]:
        """Return the seconds to copy that many bytes from page-locked and from ordinary memory."""
        if not nbytes:
            return 0.0, 0.0
        data = np.ones(nbytes, np.uint8)
        there = self.device.upload(data)
        pinned, pageable = _view(self._pinned(data)), _view(data)

        def locked() -> None:
            self.device.exchange.copy(there, pinned, self.stream)
            self.stream.synchronize()

        def ordinary() -> None:
            self.device.exchange.copy(there, pageable, self.stream)
            self.stream.synchronize()

        found = self._seconds(locked), self._seconds(ordinary)
        there.buffer.close()
        return found[0][0], found[1][0]

    def _seconds(self, *runs: Callable[[], None]) -> list[float]:
        """Return the times on the host of runs that take turns, after one each to warm up."""
        found: list[list[float]] = [[] for _ in runs]
        for _ in range(self.repeat + 1):
            for run, times in zip(runs, found, strict=True):
                begin = perf_counter()
                run()
                times.append(perf_counter() - begin)
        return [median(times[1:]) for times in found]

    def seconds_alone(self, stage: Callable[[Any], None]) -> float:
        """Return the time on the device, by its events, after one run to warm up."""
        times = [self.device.time(stage, self.stream) for _ in range(self.repeat + 1)]
        return median(times[1:])


def _stream(pipeline: Pipeline, batches: list[dict[str, Array]]) -> None:
    for _ in pipeline.map(batches):
        pass


def _view(data: Array) -> View:
    return View(HOST, HostBuffer.around(data), 0, TensorType(data.dtype, data.shape))


def show_pipeline(console: Console, found: PipelineTimes) -> None:
    """Print the stages, the ways, and how much of the copies is hidden."""
    sent, received = found.sent / 1e6, found.received / 1e6
    table = grid("a single batch", "MB", "ms", "GB/s")
    for title, mb, seconds in (
        ("upload", sent, found.upload),
        ("compute", 0, found.compute),
        ("download", received, found.download),
    ):
        rate = f"{mb / seconds / 1e3:.1f}" if mb else ""
        table.add_row(title, f"{mb:.2f}" if mb else "", ms_text(seconds), rate)
    console.print(table)
    ways = grid(f"{found.batches} batches", "", "ms", "to the floor", left=2)
    for way, seconds in found.totals.items():
        ways.add_row(way, WAYS[way], ms_text(seconds), f"{seconds / found.floor:.2f}")
    console.print(ways)
    console.print(
        f"floor {ms_text(found.floor)} ms: all stages side by side, and once those that wait for "
        f"others; {found.hidden:.0%} of what can be hidden is hidden"
    )
    if found.weights:
        console.print(
            f"the weights stay on the device: {found.weights / 1e6:.1f} MB would take "
            f"{ms_text(found.reupload)} ms per run from page-locked memory, "
            f"{ms_text(found.reupload_pageable)} ms from ordinary memory"
        )


def balanced_model() -> ModelProto:
    """Return a model whose three stages are of about the same length."""
    proto = parse_model(_BALANCED)
    weight = np.random.default_rng(0).standard_normal((1024, 1024), np.float32) / 32
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return proto


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="pipeline", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("model", nargs="?", help="an ONNX file; without one, a product of matrices")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=AxBxC")
    parser.add_argument("--batches", type=int, default=BATCHES)
    parser.add_argument("--repeat", type=int, default=REPEAT)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    source = asked.model or balanced_model()

    def make() -> Model:
        return load(source, asked.backend, precision=asked.precision)

    try:
        with make() as model:
            feeds = make_inputs(model.inputs, InputRequest(shapes=asked.shape)).arrays
            found = measure_pipeline(model, feeds, asked.batches, asked.repeat)
        console = open_console()
        if asked.json:
            print_json(console, found.to_dict())
            return 0
        show_pipeline(console, found)
        console.print()
        show_lifecycle(console, trace_lifecycle(make, feeds))
    except TercetError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
