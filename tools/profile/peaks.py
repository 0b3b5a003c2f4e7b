"""Measured peaks of a machine: copy bandwidth and float32 throughput of each device.

The roofline of a profile is made of these two numbers. A copy reads and writes each byte, which
counts twice. A product of two square matrices counts multiplications and additions; on a device the
backend itself runs it, as MatMul and as 1x1 Conv, whichever is faster: layers are compared with the
best that this backend achieves anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from math import isqrt
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console

from ... import backends
from ...backends.numpy import evaluate
from ...backends.numpy.numerics import blas
from ...runtime.base.parallel import usable_cpus
from ...runtime.ir.graph import Graph
from ...runtime.ir.infer import infer
from ...runtime.ir.op import OPERATORS
from ...runtime.ir.types import TensorType
from ...runtime.options import Options
from ...runtime.plan.backend import Backend, Device, Run, View
from ...runtime.plan.host import HOST
from ...runtime.session.model import Model
from ..common.console import Say, bytes_text, count_text, grid, silent

#: Sizes beyond all caches that keep every core busy.
HOST_BYTES, HOST_SIDE = 128 << 20, 1536
DEVICE_BYTES, DEVICE_SIDE = 256 << 20, 4096
ROUNDS = 8
#: Calls between synchronizations, so that launches do not count.
CALLS = 10


@dataclass(frozen=True, slots=True)
class Peaks:
    """The peaks of one backend on its device.

    Attributes:
        backend: the backend.
        device: its device.
        precision: of the product.
        threads: on the host; None on a device, or if unknown.
        copy: bytes read and written per second.
        flops: float32 operations per second, two per multiply-accumulate.
        upload: bytes per second to the device; None on the host.
        download: bytes per second from the device; None on the host.
    """

    backend: str
    device: str
    precision: str
    threads: int | None
    copy: float
    flops: float
    upload: float | None = None
    download: float | None = None

    @property
    def ridge(self) -> float:
        """FLOP per byte above which work is compute-bound."""
        return self.flops / self.copy

    def seconds(self, flops: float, nbytes: float) -> float:
        """Return the minimum time for this arithmetic and traffic."""
        return max(flops / self.flops, nbytes / self.copy)

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {**asdict(self), "ridge": self.ridge}

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Peaks:
        """Return the inverse of `to_dict`."""
        return cls(**{name: data for name, data in entry.items() if name != "ridge"})


_measured: dict[tuple[str, str, str, int | None], Peaks] = {}


def peaks_of(chain: Sequence[Backend], options: Options, say: Say = silent) -> Peaks:
    """Measure the device of a backend, once per process.

    Args:
        chain: the backend and its fallbacks, of which only those on its device count.
        options: the precision and the cache of compiled kernels are used.
        say: called with what is being measured.
    """
    backend = chain[0]
    on_host = backend.device is HOST
    threads = blas.threads() if on_host else None
    key = (backend.name, backend.device.name, options.precision, threads)
    if key not in _measured:
        say(f"the peaks of {backend.device.name}")
        there = [each for each in chain if each.device is backend.device]
        plain = Options(precision=options.precision, cache=options.cache)
        numbers = _host() if on_host else _device(there, plain)
        _measured[key] = Peaks(*key, *numbers)
    return _measured[key]


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
    stream = device.stream()

    def several() -> None:
        for _ in range(CALLS):
            run(stream)
        stream.synchronize()

    return _best(several) / CALLS


def _product(chain: Sequence[Backend], options: Options) -> float:
    """Return the seconds of a matrix product, by the faster of two operators."""
    side = isqrt(DEVICE_SIDE)
    square = (DEVICE_SIDE, DEVICE_SIDE)
    image = (1, DEVICE_SIDE, side, side)
    pairs = (("MatMul", square, square), ("Conv", image, (*square, 1, 1)))
    return min(_operator(chain, options, *pair) for pair in pairs)


def _operator(
    chain: Sequence[Backend],
    options: Options,
    name: str,
    shape: tuple[int, ...],
    weights: tuple[int, ...],
) -> float:
    """Return the seconds of one operator's steps on a chain of backends."""
    rng = np.random.default_rng(0)
    feed, weight = (rng.standard_normal(dims, np.float32) for dims in (shape, weights))
    graph = Graph(name)
    x = graph.add_input("x", TensorType(feed.dtype, shape))
    node = graph.insert(OPERATORS["", name](), [x, graph.constant(weight, "w")], ["y"], name=name)
    graph.set_outputs({"y": node.output})
    infer(graph)
    with Model(graph, chain, options, evaluate) as model:
        model.run({"x": feed})
        rows = model.prepare().rows
        steps = [row.run for row in rows if row.kind == "step" and row.run is not None]

        def run(stream: Any) -> None:
            for step in steps:
                step(stream)

        return _each(chain[0].device, run)


# ── showing ──────────────────────────────────────────────────────────────────────────────────────


def show_peaks(console: Console, found: Sequence[Peaks]) -> None:
    """Print a table."""
    table = grid(
        "measured peaks", "on", "copy/s", "FLOP/s", "ridge", "upload/s", "download/s", left=2
    )
    for each in found:
        transfers = (bytes_text(int(n)) if n else "-" for n in (each.upload, each.download))
        where = each.device if each.threads is None else f"{each.device}, {each.threads} threads"
        rates = bytes_text(int(each.copy)), count_text(int(each.flops)), f"{each.ridge:.1f}"
        table.add_row(each.backend, where, *rates, *transfers)
    console.print(table)
