"""The process in which sections are tried: compiles one, and runs it as often as it is told to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...runtime.base.worker import Answer, serve
from .compiler import RegionRefused, check_results, compiled, requested
from .library import gist, load
from .rig import mapped


def main() -> None:
    """Serve `rig.py`."""
    vendor = load()
    ready: list[tuple[Callable[[], object], object]] = []  # what runs, and the memory that it needs

    def answer(question: Answer) -> Answer:
        try:
            if question.get("run"):
                ready[0][0]()
                return {"error": ""}
            ready.clear()
            if question:
                made = compiled(vendor, Path(question["section"]), {}, question["threads"])
                check_results(made, question["results"])
                arrays = mapped(Path(question["tensors"]), question["specs"])
                ready.append((requested(vendor, made, arrays), (made, arrays)))
        except RegionRefused as error:
            return {"error": error.reason}
        except RuntimeError as error:
            return {"error": gist(error)}
        return {"error": ""}

    serve(answer, lambda: bool(ready))
