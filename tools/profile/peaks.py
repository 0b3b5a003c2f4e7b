"""Measured peaks of a machine: copy bandwidth, throughput and launches of each device.

The roofline of a profile is made of these numbers. A copy reads and writes each byte, which counts
twice. A product of two square matrices counts multiplications and additions; on a device the
backend itself runs it, as product and as 1x1 convolution, whichever is faster: layers are compared
with the best that this backend achieves anywhere. What a launch takes is the time of one of many
kernels that do nearly nothing, one after another in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from math import inf, isqrt
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console

from ... import backends
from ...backends.numpy import evaluate
from ...backends.numpy.numerics import blas
from ...runtime.base.parallel import usable_cpus
from ...runtime.errors import UnsupportedError
from ...runtime.ir.dtypes import DType, bfloat16, float16, float32, float64, int8
from ...runtime.ir.graph import Graph
from ...runtime.ir.infer import infer
from ...runtime.ir.op import Op
from ...runtime.ir.types import Array, TensorType
from ...runtime.ops.conv import Conv
from ...runtime.ops.elementwise import Relu
from ...runtime.ops.matmul import MatMul
from ...runtime.ops.quantize import ConvInteger, MatMulInteger
from ...runtime.options import Options
from ...runtime.plan.backend import Backend, Device, Run, View
from ...runtime.plan.host import HOST
from ...runtime.session.model import Model
from ..common.console import Say, bytes_text, count_text, counted, grid, silent
from ..common.roofline import Rates

#: Sizes beyond all caches that keep every core busy.
HOST_BYTES, HOST_SIDE = 128 << 20, 1536
DEVICE_BYTES, DEVICE_SIDE = 256 << 20, 4096
ROUNDS = 8
#: Calls between synchronizations, so that launches do not count.
CALLS = 10
#: Kernels of the graph that tells what a launch takes.
LAUNCHES = 200
#: Factors by name, and what multiplies them: as matrices, and as an image by 1x1 filters.
FACTORS: Mapping[str, tuple[DType, Op, Op]] = {
    "float16": (float16, MatMul(), Conv()),
    "bfloat16": (bfloat16, MatMul(), Conv()),
    "float32": (float32, MatMul(), Conv()),
    "float64": (float64, MatMul(), Conv()),
    "int8": (int8, MatMulInteger(), ConvInteger()),
}
HALF = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Peaks:
    """The peaks of one backend on its device.

    Attributes:
        backend: the backend.
        device: its device.
        precision: of the product.
        threads: on the host; None on a device, or if unknown.
        copy: bytes read and written per second.
        flops: operations on float32 tensors per second, two per multiply-accumulate.
        upload: bytes per second to the device; None on the host.
        download: bytes per second from the device; None on the host.
        launch: seconds per kernel; None on the host.
        others: operations per second by dtype of the factors, for those that were asked for.
    """

    backend: str
    device: str
    precision: str
    threads: int | None
    copy: float
    flops: float
    upload: float | None = None
    download: float | None = None
    launch: float | None = None
    others: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def ridge(self) -> float:
        """FLOP per byte above which work is compute-bound."""
        return self.flops / self.copy

    @property
    def rates(self) -> Rates:
        """What the roofline is made of."""
        own = self.precision if self.precision in HALF else "float32"
        return Rates(self.copy, {**self.others, own: self.flops}, self.launch or 0.0)

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {**asdict(self), "ridge": self.ridge}

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Peaks:
        """Return the inverse of `to_dict`."""
        return cls(**{name: data for name, data in entry.items() if name != "ridge"})


_measured: dict[tuple[str, str, str, int | None], Peaks] = {}


def peaks_of(
    chain: Sequence[Backend], options: Options, say: Say = silent, dtypes: Iterable[str] = ()
) -> Peaks:
    """Measure the device of a backend, once per process.

    Args:
        chain: the backend and its fallbacks, of which only those on its device count.
        options: the precision and the cache of compiled kernels are used.
        say: called with what is being measured.
        dtypes: of factors whose products are measured as well on a device, where the backend has
            them.
    """
    backend = chain[0]
    on_host = backend.device is HOST
    threads = blas.threads() if on_host else None
    key = (backend.name, backend.device.name, options.precision, threads)
    there = [each for each in chain if each.device is backend.device]
    if key not in _measured:
        say(f"the peaks of {backend.device.name}")
        plain = Options(precision=options.precision, cache=options.cache)
        numbers = _host() if on_host else _device(there, plain)
        launch = None if on_host else _launch(there, plain)
        _measured[key] = Peaks(*key, *numbers, launch=launch)
    found = _measured[key]
    missing = set() if on_host else {*dtypes} & {*FACTORS} - {*found.rates.flops}
    if missing:
        plain = Options(cache=options.cache)
        times = {name: _product(there, plain, name) for name in sorted(missing)}
        rates = {name: 2 * DEVICE_SIDE**3 / time for name, time in times.items() if time < inf}
        found = _measured[key] = replace(found, others={**found.others, **rates})
    return found


def all_peaks(say: Say = silent) -> tuple[Peaks, ...]:
    """Measure all available backends."""
    able = [found.name for found in backends.available() if found]
    options = Options()
    return tuple(peaks_of(backends.open_backends(name, options), options, say) for name in able)


def _best(call: Callable[[], object]) -> float:
    """Return the seconds of the fastest of a few calls, after a warm-up call."""
    call()
    found: list[float] = []
    for _ in range(ROUNDS):
        begin = perf_counter()
        call()
        found.append(perf_counter() - begin)
    return min(found)


# ── the host ─────────────────────────────────────────────────────────────────────────────────────


def _host() -> tuple[float, float]:
    threads = blas.threads() or usable_cpus()
    source, target = np.ones(HOST_BYTES, np.uint8), np.zeros(HOST_BYTES, np.uint8)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:
        copying = _best(lambda: list(pool.map(lambda part: np.copyto(*part), parts)))
    a = np.random.default_rng(0).standard_normal((HOST_SIDE, HOST_SIDE), np.float32)
    out = np.empty_like(a)
    multiplying = _best(lambda: np.matmul(a, a, out=out))
    return 2 * HOST_BYTES / copying, 2 * HOST_SIDE**3 / multiplying


# ── a device ─────────────────────────────────────────────────────────────────────────────────────


def _device(chain: Sequence[Backend], options: Options) -> tuple[float, float, float, float]:
    device = chain[0].device
    kind = TensorType(np.dtype(np.uint8), (DEVICE_BYTES,))
    buffers = [device.allocate(DEVICE_BYTES), device.allocate(DEVICE_BYTES)]
    staging = device.staging(DEVICE_BYTES)
    try:
        first, second = (View(device, buffer, 0, kind) for buffer in buffers)
        host = View(HOST, staging, 0, kind)
        copying = _each(device, device.copier(second, first))
        up, down = (_each(device, device.copier(*pair)) for pair in ((first, host), (host, first)))
    finally:
        for buffer in (*buffers, staging):
            buffer.close()
    flops = 2 * DEVICE_SIDE**3 / _product(chain, options)
    return 2 * DEVICE_BYTES / copying, flops, DEVICE_BYTES / up, DEVICE_BYTES / down


def _each(device: Device, run: Run) -> float:
    """Return the seconds per call among several back-to-back calls."""
    return _repeated(device, run, CALLS) / CALLS


def _repeated(device: Device, run: Run, calls: int) -> float:
    """Return the seconds of a number of calls, one after another."""
    stream = device.stream()

    def several() -> None:
        for _ in range(calls):
            run(stream)
        stream.synchronize()

    return _best(several)


def _launch(chain: Sequence[Backend], options: Options) -> float | None:
    """Return the seconds of a small kernel in a graph of them; None if nothing can be recorded."""
    x = np.ones(1, np.float32)
    device = chain[0].device
    with _steps(chain, options, Relu(), {"x": x}, {}) as run:

        def chained(stream: Any) -> None:
            for _ in range(LAUNCHES):
                run(stream)

        recorded = device.record(chained)
        if recorded is None:
            return None
        one, two = (_repeated(device, recorded, calls) for calls in (1, 2))
        return (two - one) / LAUNCHES


def _product(chain: Sequence[Backend], options: Options, dtype: str = "float32") -> float:
    """Return the seconds of a product of square matrices; infinite if the backend has none.

    Args:
        chain: backends on one device.
        options: their options.
        dtype: of the factors, one of `FACTORS`.
    """
    side = isqrt(DEVICE_SIDE)
    square, image = (DEVICE_SIDE, DEVICE_SIDE), (1, DEVICE_SIDE, side, side)
    factors, product, convolution = FACTORS[dtype]
    pairs = ((product, square, square), (convolution, image, (*square, 1, 1)))
    rng, times = np.random.default_rng(0), list[float]()
    for op, *shapes in pairs:
        x, w = (_factor(rng, shape, factors) for shape in shapes)
        try:
            with _steps(chain, options, op, {"x": x}, {"w": w}) as run:
                times.append(_each(chain[0].device, run))
        except UnsupportedError:
            times.append(inf)
    return min(times)


def _factor(rng: np.random.Generator, shape: Sequence[int], dtype: DType) -> Array:
    if dtype == int8:
        return rng.integers(-128, 128, shape, np.int8)
    return rng.standard_normal(shape, np.float32).astype(dtype)


@contextmanager
def _steps(
    chain: Sequence[Backend],
    options: Options,
    op: Op,
    feeds: Mapping[str, Array],
    weights: Mapping[str, Array],
) -> Generator[Run]:
    """Yield a run of the steps of one operator on a chain of backends."""
    graph = Graph(type(op).__name__)
    inputs = [graph.add_input(name, TensorType(x.dtype, x.shape)) for name, x in feeds.items()]
    constants = [graph.constant(weight, name) for name, weight in weights.items()]
    graph.set_outputs({"y": graph.insert(op, [*inputs, *constants], ["y"], name="y").output})
    infer(graph)
    with Model(graph, chain, options, evaluate) as model:
        model.run(feeds)
        rows = model.prepare().rows
        steps = [row.run for row in rows if row.kind == "step" and row.run is not None]

        def run(stream: Any) -> None:
            for step in steps:
                step(stream)

        yield run


# ── showing ──────────────────────────────────────────────────────────────────────────────────────


def show_peaks(console: Console, found: Sequence[Peaks]) -> None:
    """Print a table."""
    titles = "copy/s", "FLOP/s", "ridge", "upload/s", "download/s", "us per launch"
    table = grid("measured peaks", "on", *titles, left=2)
    for each in found:
        transfers = (bytes_text(int(n)) if n else "-" for n in (each.upload, each.download))
        where = each.device
        if each.threads is not None:
            where += f", {counted(each.threads, 'thread')}"
        rates = bytes_text(int(each.copy)), count_text(int(each.flops)), f"{each.ridge:.1f}"
        launch = f"{each.launch * 1e6:.2f}" if each.launch else "-"
        table.add_row(each.backend, where, *rates, *transfers, launch)
    console.print(table)
