"""Runs trials of sections in a separate process, because OpenVINO crashes on some of them.

Both processes map one file, which contains inputs and results. If no process can be started, trials
run in this one.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ...runtime.base.record import record
from ...runtime.base.worker import Ended, Worker
from ...runtime.ir.dtypes import name_of
from ...runtime.ir.types import Array
from ..numpy.numerics import blas
from ..regions.section import Section
from .compiler import RegionCompiler, RegionRefused, shapes_of

#: Alignment of tensors in bytes.
_STEP = 64
#: Name, dtype and shape.
Spec = tuple[str, str, Sequence[int]]


@record
class Ready:
    """A section that can be run.

    Attributes:
        arrays: its inputs and outputs by name.
        run: runs it on them, in place. Raises RuntimeError if OpenVINO fails, `Ended` if its
            process crashes.
    """

    arrays: Mapping[str, Array]
    run: Callable[[], object]


@contextmanager
def set_up(compiler: RegionCompiler, section: Section) -> Iterator[Ready]:
    """Compile a section to try it, one at a time.

    Raises:
        RegionRefused: OpenVINO does not accept it.
        Ended: the process crashed.
        DeviceError: this process was forked from one that had used OpenVINO.
        TimeLimitError: the time limit passed.
    """
    compiler.vendor.uses.check()
    with compiler.worker.lock:
        if compiler.worker.start():
            with _elsewhere(compiler.worker, section) as ready:
                yield ready
            return
    tensors = (*section.inputs, *section.outputs)
    arrays = {t.name: np.zeros(t.type.dims, t.type.dtype) for t in tensors}
    yield Ready(arrays, compiler.compile(section).request(arrays))


@contextmanager
def _elsewhere(worker: Worker, section: Section) -> Iterator[Ready]:
    specs = [
        (t.name, name_of(t.type.dtype), t.type.dims) for t in (*section.inputs, *section.outputs)
    ]
    with TemporaryDirectory(prefix="tercet-") as folder:
        arrays = mapped(Path(folder) / "tensors", specs)
        question = {
            "section": str(section.write(Path(folder))),
            "tensors": str(Path(folder) / "tensors"),
            "specs": specs,
            "results": shapes_of(section),
            "threads": blas.threads(),
        }
        if refusal := worker.ask(question)["error"]:
            raise RegionRefused("", refusal)

        def run() -> None:
            if error := worker.ask({"run": True})["error"]:
                raise RuntimeError(error)

        try:
            yield Ready(arrays, run)
        except BaseException:
            worker.close()
            raise
        with suppress(Ended):
            worker.ask({})


def mapped(file: Path, specs: Sequence[Spec]) -> dict[str, Array]:
    """Return arrays in a memory-mapped file, which is created if it does not exist."""
    sizes = [prod(dims) * np.dtype(dtype).itemsize for _, dtype, dims in specs]
    places = [sum(-(-size // _STEP) * _STEP for size in sizes[:i]) for i in range(len(sizes))]
    length = max(places[-1] + sizes[-1], 1)
    with file.open("r+b" if file.exists() else "w+b") as stream:
        stream.truncate(length)
        memory: Any = mmap.mmap(stream.fileno(), length)
    return {
        name: np.frombuffer(memory, dtype, prod(dims), place).reshape(dims)
        for (name, dtype, dims), place in zip(specs, places, strict=True)
    }
