"""Run TensorRT's parser and builder in a process that they may crash."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from ...backends.regions.section import Section
from ...backends.tensorrt.build import EngineBuilder, EngineSettings, SectionRefused
from ...backends.tensorrt.library import load
from ...backends.tensorrt.worker import Remote, worker_for
from ...runtime.base.closable import Closable

#: Time limit per section in seconds; the largest known networks take less than sixty.
PATIENCE = 600.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What parser and builder make of a section.

    Attributes:
        stage: ``built``, or where it ended: ``parse``, ``build`` or ``crash``.
        reason: the library's words; empty if it was built.
        node: the node that they are about, where they name one.
        seconds: of the process.
        nbytes: of the engine.
    """

    stage: str
    reason: str = ""
    node: str = ""
    seconds: float = 0.0
    nbytes: int = 0

    def __bool__(self) -> bool:
        return self.stage == "built"


class SectionBuilder(Closable):
    """A process with the library, and the next one where it crashed.

    Args:
        capability: what engines are built for.
        patience: seconds that a section may take.

    Attributes:
        crashes: how many processes have ended over a section.
    """

    def __init__(self, capability: str, patience: float = PATIENCE) -> None:
        self._process = worker_for(capability, patience=patience)
        self._builder = Remote(EngineBuilder(load(), capability), self._process)
        self.crashes = 0

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def build(self, section: Section) -> Verdict:
        """Return the library's result for a section."""
        start = perf_counter()
        try:
            nbytes = len(self._builder.build(section, EngineSettings()))
        except SectionRefused as error:
            self.crashes += error.stage == "crash"
            return Verdict(error.stage, error.reason, error.node, perf_counter() - start)
        return Verdict("built", seconds=perf_counter() - start, nbytes=nbytes)
