"""Files that are mapped into memory: whether they are still as long, and giving them back."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from mmap import mmap
from weakref import ref

from ..errors import ModelFileError
from .graph import Graph


@dataclass(frozen=True, slots=True)
class Mapped:
    """A file of which the arrays of a model are views.

    Attributes:
        name: what the model calls it.
        file: the model's path.
        nbytes: as many as were mapped.
        mapping: gone when no array needs it any more.
    """

    name: str
    file: str | None
    nbytes: int
    mapping: ref[mmap]

    def check(self) -> None:
        """Refuse a file that has become shorter: to read where it ended would kill the process.

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
    """Give files back at once that nobody uses but a closed model.

    Graphs are full of circles, so the collector would come for them some day. One that a user
    keeps has no nodes any more.

    Args:
        files: of the model.
        graph: as it was read.
    """
    if any(each.mapping() is not None for each in files):
        graph.set_outputs({})
        graph.sweep()
        gc.collect()
