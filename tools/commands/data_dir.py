"""The option for external data, of every command that reads a model."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer

from .added_option import added_option

_DataDir = Annotated[
    Path | None,
    typer.Option(
        "--external-data-dir",
        metavar="FOLDER",
        help="Folder of the model's external data; default: the folder of MODEL.",
    ),
]


def _around(folder: Path) -> AbstractContextManager[Any]:
    from ...importers.onnx.reading.external import external_data_in

    return external_data_in(folder)


#: Adds the option to a command that reads a model.
with_data_dir = added_option("external_data_dir", _DataDir, _around, frozenset({"model", "models"}))
