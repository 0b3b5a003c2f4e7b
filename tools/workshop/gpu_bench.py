"""Measure latency and accuracy of every backend on a GPU (`make gpu-bench`).

For each model and configuration: the latency of a call from Python, including copies to and from
the device; the device time, between events around a replay of the plan's graph with the input
already there; and the distance of the results from a float64 run. The results are printed, and
written as JSON and Markdown.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import load
from ...api import Loadable
from ...backends import open_backends
from ...runtime.errors import BackendUnavailable, TercetError
from ...runtime.ir.types import Array
from ...runtime.options import Options
from ...runtime.session.model import Model
from ...version import PACKAGE
from ..common.console import Say, open_console, print_table, progress
from ..common.environment import environment
from ..common.markdown import head, table
from ..common.measure import Repeat, Timing, interleave
from ..common.results import to_json, write
from ..profile.device_time import device_times
from ..verdict.accuracy import distance, exact_outputs
from .arguments import RESULTS
from .arguments import parser as make_parser
from .bench_models import bench_inputs, bench_model

if TYPE_CHECKING:
    from ...backends.cuda.device import CudaDevice

MODELS = (
    "demo",
    "mnist",
    "squeezenet",
    "inception_v1",
    "mobilenet_v2",
    "resnet50",
    "vgg16",
    "vgg19",
)


@dataclass(frozen=True, slots=True)
class BenchVariant:
    """A way to run a model.

    Attributes:
        name: for the tables.
        backend: whose it is.
        options: fields of `tercet.Options`.
    """

    name: str
    backend: str
    options: dict[str, Any]


WAYS = (
    BenchVariant("numpy", "numpy", {}),
    BenchVariant("cuda, naive", "cuda", {"conv": "naive"}),
    BenchVariant("cuda", "cuda", {}),
    BenchVariant("cuda, float16", "cuda", {"precision": "float16"}),
    BenchVariant("cuda, bfloat16", "cuda", {"precision": "bfloat16"}),
    BenchVariant("cudnn", "cudnn", {}),
    BenchVariant("cudnn, tuned", "cudnn", {"tune": True}),
)


@dataclass(frozen=True, slots=True)
class GpuResult:
    """What was measured of one model, run in one way.

    Attributes:
        model: its name.
        way: how it ran.
        call: latencies of `Model.run`, in seconds.
        device: device times in seconds; None on the host.
        error: relative L2 distance from float64, the worst output's.
        first: seconds of loading, planning, compiling and the first run.
        steps: rows of the plan that compute something.
        device_bytes: activations, workspace and weights on the device.
    """

    model: str
    way: str
    call: Timing
    device: Timing | None
    error: float
    first: float
    steps: int
    device_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON, times in milliseconds."""
        return {
            "model": self.model,
            "way": self.way,
            "call_ms": self.call.to_dict(),
            "device_ms": self.device.to_dict() if self.device else None,
            "error": self.error,
            "first_seconds": self.first,
            "steps": self.steps,
            "device_bytes": self.device_bytes,
        }


# ── models ───────────────────────────────────────────────────────────────────────────────────────


def model_and_inputs(name: str) -> tuple[Loadable, dict[str, Array]] | None:
    """Return a model with inputs for it; None if it is one of the optional ones and not here."""
    if name == "demo":
        with np.load(PACKAGE / "demo" / "digits.npz", allow_pickle=False) as digits:
            images = digits["images"][:1].astype(np.float32) / 16
        path = PACKAGE / "demo" / "digits.onnx"
        return path, {_only_input(path): images}
    if name == "mnist":
        path = Path(os.environ.get("TERCET_MODELS", "")) / "mnist-8-cntk" / "model.onnx"
        if not path.is_file():
            return None
        image = np.random.default_rng(0).uniform(0, 255, (1, 1, 28, 28)).astype(np.float32)
        return path, {_only_input(path): image}
    proto = bench_model(name)
    return proto, bench_inputs(proto)


def _only_input(path: Path) -> str:
    with load(path) as model:
        (info,) = model.inputs
    return info.name


# ── measuring ────────────────────────────────────────────────────────────────────────────────────


def measure(
    name: str, source: Loadable, feeds: dict[str, Array], ways: Sequence[BenchVariant], say: Say
) -> Iterator[GpuResult | tuple[BenchVariant, str]]:
    """Yield a result for each way, or the reason why there is none."""
    say(f"{name}: float64")
    exact = exact_outputs(source, feeds)
    for way in ways:
        say(f"{name}: {way.name}")
        start = perf_counter()
        try:
            model = load(source, way.backend, **way.options)
        except BackendUnavailable as error:
            yield way, str(error)
            continue
        with model:
            found = model.run(feeds)
            first = perf_counter() - start
            yield _result(name, way, model, feeds, distance(found, exact), first)


def _result(
    name: str, way: BenchVariant, model: Model, feeds: dict[str, Array], error: float, first: float
) -> GpuResult:
    repeat = Repeat(seconds=1.0, minimum=5, maximum=500)
    call = interleave({way.name: lambda: model.run(feeds)}, repeat)[way.name]
    plan = model.prepare()
    memory = plan.memory
    kinds = (memory.activations, memory.workspace, memory.weights)
    return GpuResult(
        model=name,
        way=way.name,
        call=call,
        device=device_times(model, plan),
        error=error,
        first=first,
        steps=sum(row.kind == "step" for row in plan.rows),
        device_bytes=sum(n for kind in kinds for device, n in kind.items() if device != "cpu"),
    )


# ── environment ──────────────────────────────────────────────────────────────────────────────────


def gpu_environment(commit: str) -> dict[str, str]:
    """Return what the figures depend on; raises BackendUnavailable without a GPU."""
    (backend,) = open_backends("cuda", Options())
    device: CudaDevice = backend.device  # type: ignore[assignment]  # the cuda backend's
    packages = (
        "numpy",
        "cuda-core",
        "cuda-bindings",
        "nvidia-cuda-nvrtc",
        "nvidia-cudnn",
        "nvidia-cudnn-frontend",
    )
    return {"GPU": device.description, **environment(packages, commit)}


# ── reports ──────────────────────────────────────────────────────────────────────────────────────

TITLES = ("model", "way", "call ms", "device ms", "error", "steps", "MB")


def cells(result: GpuResult, *, spread: bool = False) -> tuple[str, ...]:
    """Return a row of the table; with `spread`, 10th and 90th percentile after each time."""
    return (
        result.model,
        result.way,
        _milliseconds(result.call, spread),
        _milliseconds(result.device, spread),
        f"{result.error:.1e}",
        str(result.steps),
        f"{result.device_bytes / 1e6:.1f}" if result.device else "",
    )


def _milliseconds(timing: Timing | None, spread: bool) -> str:
    if timing is None:
        return ""
    low, median, high = (f"{1e3 * timing.quantile(q):.3f}" for q in (0.1, 0.5, 0.9))
    return f"{median} ({low}–{high})" if spread else median


def markdown(results: Sequence[GpuResult], about: dict[str, str]) -> str:
    """Return the report as a Markdown page."""
    text = (
        "Written by `make gpu-bench`. Batch size 1, float32 (no TF32), seeded random weights for "
        "the models of the onnx package. *Call* is `Model.run` from Python with copies to and from "
        "the device; *device* is a replay of the plan's CUDA graph with the input on the device, "
        "timed with events. Errors are relative L2 distances from a float64 run. Times are medians "
        "with the 10th and 90th percentile in brackets. *MB* is the memory in use on the device."
    )
    rows = (cells(result, spread=True) for result in results)
    lines = [
        *head("Latency and accuracy on a GPU", text, about),
        *table(TITLES, rows, range(2, len(TITLES))),
    ]
    return "\n".join([*lines, ""])


def save(results: Sequence[GpuResult], about: dict[str, str], folder: Path) -> list[Path]:
    """Write JSON and Markdown; return their paths."""
    data = to_json(about, results=[result.to_dict() for result in results])
    return write(folder, {"gpu_bench.json": data, "gpu_bench.md": markdown(results, about)})


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and save; return the exit code."""
    parser = make_parser("gpu_bench", __doc__, RESULTS)
    parser.add_argument("models", nargs="*", default=list(MODELS), help=f"of {', '.join(MODELS)}")
    chosen = parser.parse_args(arguments)
    console = open_console()
    try:
        about = gpu_environment(chosen.commit)
        results = _measure_all(chosen.models, console.print)
    except TercetError as error:
        console.print(f"gpu_bench: {error}")
        return error.exit_code
    print_table(console, TITLES, map(cells, results), left=2)
    for path in save(results, about, chosen.output):
        console.print(f"written: {path}")
    return 0


def _measure_all(names: Sequence[str], note: Callable[[str], object]) -> list[GpuResult]:
    results: list[GpuResult] = []
    with progress() as say:
        for name in names:
            found = model_and_inputs(name)
            if found is None:
                note(f"{name}: skipped; set TERCET_MODELS to the folder of the optional models")
                continue
            for result in measure(name, *found, WAYS, say):
                if isinstance(result, GpuResult):
                    results.append(result)
                else:
                    note(f"{name}: {result[0].name}: {result[1]}")
    return results


if __name__ == "__main__":
    raise SystemExit(main())
