"""Measurements of `reliability` that are not tests: equal bits, threads, leaks, hours of use."""

from __future__ import annotations

import gc
import os
import resource
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

import numpy as np

from ... import load
from ...runtime.errors import PrecisionWarning
from ...runtime.ir.dtypes import FLOATS
from ...runtime.ir.types import Array
from ...runtime.session.model import Model
from ..demo.demo import DEMO
from .fuzz.seeds import Seed, model_seeds
from .fuzz.trial import inputs_for

#: What is found, and whether that is enough.
Found = tuple[str, bool]

RUNS, THREADS, RUNS_PER_THREAD, SESSIONS = 100, 8, 1000, 1000
#: Kilobytes of resident memory that a run may leave, and all sessions together.
KB_PER_RUN, KB_OF_SESSIONS = 1.0, 8192


def models() -> Iterator[tuple[Model, dict[str, Array]]]:
    """Yield small models of every kind, open, with inputs."""
    sources: Sequence[Seed] = (*model_seeds(), Seed("digits", (DEMO / "digits.onnx").read_bytes()))
    for seed in sources:
        with load(seed.data) as model:
            yield model, inputs_for(model.inputs, ()) or {}


def determinism() -> Found:
    """Run every model repeatedly, on one thread and on several at a time."""
    differing, count = 0, 0
    for model, feeds in models():
        first = _bits(model, feeds)
        with ThreadPoolExecutor(THREADS) as pool:
            others = [_bits(model, feeds) for _ in range(RUNS)]
            others += pool.map(lambda _, m=model, f=feeds: _bits(m, f), range(RUNS))
        differing += sum(other != first for other in others)
        count += len(others)
    return f"{count} runs of 6 models, {differing} of them with other bits (numpy)", not differing


def threads() -> Found:
    """Run one model on eight threads, each with other inputs."""
    rng = np.random.default_rng(0)
    images = [rng.random((1 + i % 3, 1, 8, 8), np.float32) for i in range(THREADS)]
    with load(DEMO / "digits.onnx") as model:
        expected = [_bits(model, {model.inputs[0].name: image}) for image in images]

        def work(i: int) -> int:
            feeds = {model.inputs[0].name: images[i]}
            return sum(_bits(model, feeds) != expected[i] for _ in range(RUNS_PER_THREAD))

        with ThreadPoolExecutor(THREADS) as pool:
            wrong = sum(pool.map(work, range(THREADS)))
    return f"{THREADS} threads x {RUNS_PER_THREAD} runs, {wrong} unlike serial ones", not wrong


def half(folder: Path) -> Found:
    """Run every model of a folder in float32 and in float16, on all inputs that it has."""
    sets, elements, lost, told = 0, 0, 0, 0
    names: set[str] = set()
    for file in sorted(folder.glob("*/model.onnx")):
        for stored in sorted(file.parent.glob("*inputs.npz")):
            feeds = dict(np.load(stored))
            with load(file) as model:
                wide = model.run(feeds)
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always", PrecisionWarning)
                with load(file, precision="float16") as model:
                    narrow = model.run(feeds)
            sets += 1
            told += any(issubclass(each.category, PrecisionWarning) for each in seen)
            names.add(file.parent.name)
            for name, right in wide.items():
                if isinstance(right, np.ndarray) and right.dtype in FLOATS:
                    elements += right.size
                    lost += _lost(right, np.asarray(narrow[name]))
    said = f"{len(names)} models, {sets} sets of inputs, {elements:,} numbers: {lost} are NaN or "
    return f"{said}infinite where float32 is finite; {told} warnings (numpy)", not lost and sets > 0


def _lost(right: Array, found: Array) -> int:
    """Return how many numbers are not finite and should be; all of another shape."""
    if right.shape != found.shape:
        return right.size
    finite = [np.isfinite(x.astype(np.float64)) for x in (right, found)]
    return int((finite[0] & ~finite[1]).sum())


def leaks() -> Found:
    """Open and close a model, and run another one, a thousand times."""
    file = DEMO / "digits.onnx"
    image = np.zeros((1, 1, 8, 8), np.float32)

    def session() -> None:
        with load(file) as model:
            model(image)

    for _ in range(50):
        session()
    before, files = _resident(), _descriptors()
    for _ in range(SESSIONS):
        session()
    sessions, left = _resident() - before, _descriptors() - files
    with load(file) as model:
        for _ in range(1000):
            model(image)
        before = _resident()
        for _ in range(10_000):
            model(image)
        per_run = (_resident() - before) / 10_000
    said = f"{SESSIONS} sessions: {sessions:+.0f} kB, {left:+d} files; {per_run:+.3f} kB a run"
    return said, sessions < KB_OF_SESSIONS and left <= 0 and per_run < KB_PER_RUN


def soak(seconds: float) -> Found:
    """Run models on random shapes for this many seconds."""
    rng, runs = np.random.default_rng(1), 0
    with load(DEMO / "digits.onnx", max_plans=4) as model:
        name, before = model.inputs[0].name, 0.0
        begin = monotonic()
        while monotonic() < begin + seconds:
            image = rng.random((int(rng.integers(1, 33)), 1, 8, 8), np.float32)
            (scores,) = model.run({name: image}).values()
            if not np.isfinite(scores).all():
                return f"run {runs} gives numbers that are not finite", False
            runs += 1
            if runs == 500:
                before = _resident()
        grown = _resident() - before
    return f"{runs} runs in {seconds:.0f} s, {grown:+.0f} kB", grown < KB_OF_SESSIONS


def _bits(model: Model, feeds: dict[str, Array]) -> list[bytes]:
    return [np.asarray(data).tobytes() for data in model.run(feeds).values()]


def _resident() -> float:
    """Return kilobytes of resident memory."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1000


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
