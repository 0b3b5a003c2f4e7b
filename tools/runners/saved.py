"""Saved outputs as runners: an .npz file, a folder of ONNX test data, a saved comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...runtime.errors import InputError, UsageError, did_you_mean
from ...runtime.ir.types import Array, HostValue
from ...runtime.session.model import TensorInfo
from ..common.archives import entries, read_archive, read_text, write_archive
from ..common.arrays import read_test_data
from ..common.inputs import SAVED, InputRequest, as_declared

#: The member of a saved comparison besides its arrays.
INDEX = "tercet.json"


@dataclass(frozen=True, slots=True)
class Saved:
    """A runner with saved outputs; see `runners.Runner`.

    Attributes:
        about: the source of its outputs.
        precision: compute precision of its float32 tensors, if known.
        outputs: by name.
    """

    about: str
    precision: str
    outputs: Mapping[str, Array] = field(repr=False)

    @property
    def seconds(self) -> float | None:
        """None: nothing runs."""
        return None

    def run(self, feeds: Mapping[str, Array]) -> dict[str, HostValue]:
        """Return the outputs, whatever the inputs are."""
        return dict(self.outputs)

    def close(self) -> None:
        """Do nothing."""


def open_saved(name: str, infos: Sequence[TensorInfo], wanted: Sequence[str]) -> Saved:
    """Return a runner for the outputs in a file or folder.

    Args:
        name: an .npz file with an array per output, or a folder with output_0.pb, ….
        infos: the model's outputs.
        wanted: tensors to compare; the model's outputs if empty.

    Raises:
        InputError: it is neither, or lacks an output.
    """
    path = Path(name)
    names = list(wanted) or [info.name for info in infos]
    if path.is_dir():
        found = read_test_data(path, "output", [info.name for info in infos])
    else:
        if path.exists() and INDEX in entries(path):
            raise UsageError(f"{name} is a saved comparison: --load {name} takes it up")
        found = read_archive(path)
    by_name = {info.name: info for info in infos}
    outputs: dict[str, Array] = {}
    for each in names:
        own = {name: data for name, data in found.items() if _is_of(name, each)}
        if not own:
            hint = did_you_mean(each, list(found))
            raise InputError(
                f"{name} has no '{each}'{hint} (it has {', '.join(found) or 'nothing'})"
            )
        outputs |= {n: as_declared(data, by_name.get(n)) for n, data in own.items()}
    return Saved(f"saved in {name}", "float32", outputs)


def _is_of(name: str, output: str) -> bool:
    """Whether an array is an output, or part of one that is a list or dictionary."""
    return name == output or (name.startswith(f"{output}[") and name.endswith("]"))


def inputs_beside(saved: Sequence[str], wanted: InputRequest) -> InputRequest:
    """Return the input request; a participating folder of test data provides inputs.

    That applies only if nothing else was requested.

    Args:
        saved: the files and folders of outputs that take part.
        wanted: the request.
    """
    folders = [Path(name) for name in saved if Path(name).is_dir()]
    if wanted.is_asked or not folders or not (folders[0] / "input_0.pb").exists():
        return wanted
    return InputRequest(folder=folders[0])


# ── comparisons ──────────────────────────────────────────────────────────────────────────────────


def write_comparison(file: Path, inputs: Mapping[str, Array], runners: Mapping[str, Saved]) -> None:
    """Write inputs and all outputs to an .npz file for `read_comparison`."""
    if file.suffix.lower() != ".npz":
        raise UsageError(f"--save {file}: a comparison is saved in an .npz file")
    arrays = {f"{SAVED}{name}": data for name, data in inputs.items()}
    index: list[dict[str, Any]] = []
    for i, (name, saved) in enumerate(runners.items()):
        arrays |= {f"{i}/{output}": data for output, data in saved.outputs.items()}
        index.append({"name": name, "about": saved.about, "precision": saved.precision})
    write_archive(file, arrays, {INDEX: index})


def read_comparison(
    file: Path, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]
) -> tuple[dict[str, Array], dict[str, Saved]]:
    """Return inputs and runners of a saved comparison.

    Args:
        file: its path.
        inputs: the model's.
        outputs: likewise.

    Raises:
        InputError: the file is not a saved comparison.
        OSError: it cannot be read.
    """
    if not file.exists() or INDEX not in entries(file):
        with file.open("rb"):
            pass
        raise InputError(f"{file} is not a saved comparison; `tercet compare --save` writes one")
    try:
        index: list[dict[str, str]] = read_text(file, INDEX)
        found = read_archive(file, (INDEX,))
        declared = {info.name: info for info in (*inputs, *outputs)}
        fed = _group(found, SAVED.removesuffix("/"), declared)
        saved = {
            f"{entry['name']} (saved)": Saved(
                entry["about"], entry["precision"], _group(found, str(i), declared)
            )
            for i, entry in enumerate(index)
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file} is damaged: {type(error).__name__}: {error}") from error
    return fed, saved


def _group(
    found: Mapping[str, Array], group: str, declared: Mapping[str, TensorInfo]
) -> dict[str, Array]:
    start = f"{group}/"
    own = {name[len(start) :]: data for name, data in found.items() if name.startswith(start)}
    return {name: as_declared(data, declared.get(name)) for name, data in own.items()}
