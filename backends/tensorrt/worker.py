"""Building in a separate process, because the library crashes on some sections.

`Remote` asks; the process runs `main`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from ...runtime.base.cache import Cache
from ...runtime.base.worker import Answer, Ended, Worker, serve
from ..regions.section import Section
from .build import EngineBuilder, EngineIO, EngineSettings, SectionRefused
from .library import load


class Builds(Protocol):
    """Builds engines: an `EngineBuilder` or a `Remote` one."""

    def build(self, section: Section, settings: EngineSettings) -> bytes:
        """Return a serialized engine; raises `SectionRefused`."""
        ...


class Remote:
    """Builds in a separate process, or in this one if none can be started.

    Args:
        here: builds in this process.
        worker: the process.
    """

    def __init__(self, here: Builds, worker: Worker) -> None:
        self._here = here
        self._worker = worker

    def build(self, section: Section, settings: EngineSettings) -> bytes:
        """Return a serialized engine.

        Raises:
            SectionRefused: the library does not accept the section, or crashes on it.
            TimeLimitError: the time limit passed.
        """
        with self._worker.lock:
            if self._worker.start():
                with TemporaryDirectory(prefix="tercet-") as folder:
                    return self._asked(section, settings, Path(folder))
        return self._here.build(section, settings)

    def _asked(self, section: Section, settings: EngineSettings, folder: Path) -> bytes:
        engine = folder / "engine"
        question = {
            "path": str(section.write(folder)),
            "border": asdict(EngineIO.of(section)),
            "settings": asdict(settings),
            "engine": str(engine),
        }
        try:
            found = self._worker.ask(question)
        except Ended as error:
            raise SectionRefused("", f"the library crashes on this: {error}", "crash") from None
        if found["stage"] != "built":
            raise SectionRefused(found["node"], found["reason"], found["stage"])
        return engine.read_bytes()


def worker_for(
    capability: str = "",
    device: int | None = None,
    timings: str = "",
    patience: float | None = None,
) -> Worker:
    """Return a process that builds engines.

    Args:
        capability: the compute capability to build for; that of the device if empty.
        device: index of the GPU to build on; None for none.
        timings: the file for kernel timings, in the folder of a `Cache`.
        patience: time limit per engine in seconds; None for no limit.
    """
    gpu = "" if device is None else str(device)
    return Worker(__name__, capability, gpu, timings, patience=patience)


def main(capability: str, device: str, timings: str) -> None:
    """Serve `Remote`, if this process can build anything at all."""
    if device:
        from cuda.core import Device

        Device(int(device)).set_current()
    kept = (Cache(Path(timings).parent), Path(timings).name) if timings else None
    builder = EngineBuilder(load(), capability, kept)
    with suppress(SectionRefused):
        builder.probe()
        serve(lambda question: _answer(builder, question))


def _answer(builder: EngineBuilder, question: Mapping[str, Any]) -> Answer:
    border = question["border"]
    types = {name: (dtype, tuple(dims)) for name, (dtype, dims) in border["types"].items()}
    profiles = {n: (tuple(a), tuple(b), tuple(c)) for n, (a, b, c) in border["profiles"].items()}
    settings = EngineSettings(**question["settings"])
    try:
        built = builder.build_file(Path(question["path"]), EngineIO(types, profiles), settings)
    except SectionRefused as error:
        return {"stage": error.stage, "reason": error.reason, "node": error.node}
    Path(question["engine"]).write_bytes(built)
    return {"stage": "built"}
