"""Sections through the real parser and builder, in a process that they may crash.

    python -m tercet.tools.tensorrt_worker 8.9

reads a path and profiles a line from its standard input, as JSON, and answers with a verdict.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import IO, Any

from ..backends.regions.section import Section
from ..backends.tensorrt.build import Border, Builder, Refused, Settings
from ..backends.tensorrt.vendor import load
from ..runtime.closable import Closable

#: Seconds that a section may take; the largest networks known here take less than sixty.
PATIENCE = 600.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What parser and builder make of a section.

    Attributes:
        stage: ``built``, or where it ended: ``parse``, ``build``, ``crash`` or ``time``.
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


class Worker(Closable):
    """A process with the library, and the next one where it crashed.

    Args:
        capability: what engines are built for.
        patience: seconds that a section may take.
    """

    def __init__(self, capability: str, patience: float = PATIENCE) -> None:
        self._command = (sys.executable, "-m", __spec__.name, capability)
        self._patience = patience
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = TemporaryDirectory(prefix="tercet-sections-")
        self.crashes = 0

    def close(self) -> None:
        """End the process."""
        self._end()
        self._folder.cleanup()

    def build(self, section: Section) -> Verdict:
        """Return what the library makes of a section."""
        with TemporaryDirectory(dir=self._folder.name) as folder:
            path = section.write(Path(folder))
            start = perf_counter()
            found = self._ask({"path": str(path), "border": asdict(Border.of(section))})
            seconds = perf_counter() - start
        stage, reason, node = found["stage"], found.get("reason", ""), found.get("node", "")
        return Verdict(stage, reason, node, seconds, found.get("nbytes", 0))

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                self._command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], self._patience)
            line = process.stdout.readline() if ready else None
        except BrokenPipeError:
            line = b""
        if line:
            return dict(json.loads(line))
        status = self._end()
        self.crashes += 1
        if line is None:
            return {"stage": "time", "reason": f"not done after {self._patience:g} s"}
        return {"stage": "crash", "reason": f"the process ended with status {status}"}

    def _end(self) -> int:
        """End the process if there is one; return its status."""
        process, self._process = self._process, None
        if process is None:
            return 0
        if process.stdin is not None:
            process.stdin.close()
        try:
            status = process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        if process.stdout is not None:
            process.stdout.close()
        return status


def serve(capability: str, lines: IO[str], answer: Callable[[str], None]) -> None:
    """Answer questions until there are no more."""
    builder = Builder(load(), capability)
    for line in lines:
        question = json.loads(line)
        types = {n: (d, tuple(dims)) for n, (d, dims) in question["border"]["types"].items()}
        given = question["border"]["profiles"].items()
        profiles = {n: (tuple(a), tuple(b), tuple(c)) for n, (a, b, c) in given}
        try:
            border = Border(types, profiles)
            built = builder.build_file(Path(question["path"]), border, Settings())
            verdict = Verdict("built", nbytes=len(built))
        except Refused as error:
            verdict = Verdict(error.stage, error.reason, error.node)
        answer(json.dumps(asdict(verdict)))


def main() -> None:
    """Serve; what the library prints by itself goes to standard error."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    serve(sys.argv[1], sys.stdin, lambda text: print(text, file=out))


if __name__ == "__main__":
    main()
