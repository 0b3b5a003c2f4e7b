"""Memory-mapped files, and graphs: checks for truncation, and the release of both."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from mmap import mmap
from pathlib import Path
from weakref import ref

from ..base.record import record
from ..errors import ModelFileError
from .graph import Graph


@record
class Mapped:
    """A file whose mapping backs arrays of a model.

    Attributes:
        name: its name in the model.
        file: the model's path.
        nbytes: number of mapped bytes.
        mapping: the mapping; freed with the last array that uses it.
        path: what its name resolves to.
        signature: of the file when it was opened; see `base.files.signature`.
    """

    name: str
    file: str | None
    nbytes: int
    mapping: ref[mmap]
    path: Path
    signature: tuple[int, ...]

    def check(self) -> None:
        """Raise ModelFileError if the file was truncated: reading it would raise SIGBUS.

        Raises:
            ModelFileError: it is.
        """
        mapping = self.mapping()
        if mapping is not None and (size := mapping.size()) < self.nbytes:
            raise ModelFileError(
                f"external data '{self.name}' had {self.nbytes} bytes when the model was loaded, "
                f"and has {size} now; load the model again, with map_external_data=False where "
                "files change while it is in use",
                file=self.file,
            )


def release(files: Sequence[Mapped], graph: Graph) -> None:
    """Release files at once if only a closed model uses them.

    Graphs contain reference cycles, which the garbage collector would free later. A graph that a
    user kept loses its nodes.

    Args:
        files: the model's files.
        graph: the graph as imported.
    """
    if any(each.mapping() is not None for each in files):
        graph.set_outputs({})
        graph.sweep()
        gc.collect()


def free(graphs: list[Graph]) -> None:
    """Dissolve the graphs of a list to which nobody else refers; the list is empty then."""
    while graphs:
        graph = graphs.pop()
        parts, kept = copy(graph), ref(graph)
        del graph
        if kept() is None:
            parts.dissolve()


_FOLDER: ContextVar[Path | None] = ContextVar("external_data_dir", default=None)


def external_data_dir() -> Path | None:
    """Return the folder set by `external_data_in`, None outside of it."""
    return _FOLDER.get()


@contextmanager
def external_data_in(folder: str | os.PathLike[str] | None) -> Generator[None]:
    """Look up external data in this folder within the block; None for the default."""
    token = _FOLDER.set(_FOLDER.get() if folder is None else Path(folder))
    try:
        yield
    finally:
        _FOLDER.reset(token)
