"""Writes graphs of models to files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from errno import ENOENT
from pathlib import Path
from typing import Any

from onnx import ModelProto

from ...api import Loadable
from ...backends.numpy import evaluate
from ...importers.onnx.reading.texts import FORMATS
from ...importers.onnx.writing.encode import embedded
from ...importers.onnx.writing.expand import expanded, lacking
from ...importers.onnx.writing.export import About
from ...importers.onnx.writing.export import export as to_proto
from ...importers.onnx.writing.masks import with_full_masks
from ...importers.onnx.writing.save import save
from ...importers.onnx.writing.sparse import smaller
from ...importers.onnx.writing.versions import OLDEST
from ...runtime.errors import FileError, UsageError
from ...runtime.ir.graph import Graph
from ...runtime.passes import STATIC_PASSES, Rewrites
from ...runtime.passes import optimise as run_passes
from ...runtime.session.model import Model
from ...version import __version__
from ..common.inputs import Inputs
from ..verdict.agreement import Agreement, Word
from ..verdict.error_bounds import overall
from ..verdict.judged import Judged

#: Passes that simplify what is written out; others may fuse it to operators that an opset lacks.
_TIDYING = tuple(
    each
    for each in STATIC_PASSES
    if each.name
    in (
        "fold_constants",
        "inline_bodies",
        "remove_identity",
        "compose_views",
        "merge_duplicates",
        "remove_dead",
    )
)


@dataclass(frozen=True, slots=True, repr=False)
class ExportResult(Judged):
    """The result of an export.

    Attributes:
        model: the source model.
        file: the written file, None if there is none.
        proto: the model, without external constants.
        nbytes: size of the file, and of the external data file.
        operators: number of nodes before and after, by operator.
        rewrites: number of rewrites by pass.
        inputs: the inputs of the check, None if there was none.
        agreements: each output against the original's; empty if not checked.
        frozen: inputs that became constants.
        folded: the file's names of nodes that were folded because they depend only on these.
        stopped, allow_inconclusive: see `Judged`.
    """

    model: str
    file: Path | None
    proto: ModelProto = field(repr=False)
    nbytes: tuple[int, int]
    operators: Mapping[str, tuple[int, int]]
    rewrites: Mapping[str, int]
    inputs: Inputs | None = None
    agreements: tuple[Agreement, ...] = ()
    frozen: tuple[str, ...] = ()
    folded: tuple[str, ...] = ()

    def _about(self) -> str:
        before, after = self.nodes
        return f"{self.file or 'in memory'}, from {self.model}: {after} of {before} nodes"

    @property
    def opsets(self) -> dict[str, int]:
        """The written version of each domain; "" is ai.onnx."""
        return {entry.domain: entry.version for entry in self.proto.opset_import}

    @property
    def nodes(self) -> tuple[int, int]:
        """Number of nodes before and after, bodies included."""
        pairs = self.operators.values()
        return sum(before for before, _ in pairs), sum(after for _, after in pairs)

    @property
    def verdict(self) -> Word:
        """The worst verdict of an output; ``ok`` if none was checked."""
        return overall([found.verdict for found in self.agreements])

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the model itself, for JSON."""
        pairs = self.operators.items()
        return {
            "model": self.model,
            "file": None if self.file is None else str(self.file),
            "bytes": self.nbytes[0],
            "bytes_beside": self.nbytes[1],
            "ir_version": self.proto.ir_version,
            "opsets": {domain or "ai.onnx": v for domain, v in self.opsets.items()},
            "operators": {kind: {"before": b, "after": a} for kind, (b, a) in pairs},
            "rewrites": dict(self.rewrites),
            "frozen": list(self.frozen),
            "folded": list(self.folded),
            "ok": self.ok,
            "verdict": self.verdict,
            "inputs": None if self.inputs is None else self.inputs.to_dict(),
            "outputs": [found.to_dict() for found in self.agreements],
        }


def write_model(
    model: Model,
    graph: Graph,
    source: Loadable,
    file: str | os.PathLike[str] | None,
    *,
    opset: int | None,
    external: int | None,
    sparse: bool,
    force: bool,
    keep_opset: bool = False,
) -> ExportResult:
    """Write a graph derived from a model; see `export`.

    With `keep_opset`, in that of the model if `opset` is None and that can express the graph.
    """
    about = About(version=__version__, metadata=model.source.metadata)
    opsets = None if opset is None else {"": opset}
    minimum = model.source.opsets
    path = None if file is None else check_model_name(Path(file))
    if path is not None and not force:
        check_other_file(source, path)
    if opset is not None:
        graph = said_in(graph, opset, model)
    elif keep_opset:
        graph = _in_own_opset(graph, model)
    graph = with_full_masks(graph)
    before, after = (Counter(node.kind for node in g.walk()) for g in (model.imported, graph))
    if path is None:
        store = smaller(embedded) if sparse else embedded
        proto = to_proto(graph, opsets=opsets, at_least=minimum, about=about, store=store)
    else:
        proto = save(
            graph,
            path,
            opsets=opsets,
            at_least=minimum,
            about=about,
            external=external,
            sparse=sparse,
        )
    return ExportResult(
        model=model_title(source),
        file=path,
        proto=proto,
        nbytes=(proto.ByteSize(), _external_size(path, proto)),
        operators={kind: (before[kind], after[kind]) for kind in sorted({*before, *after})},
        rewrites=model.rewrites.counts,
    )


def said_in(graph: Graph, opset: int, model: Model) -> Graph:
    """Return a graph without operators that an opset lacks, as far as they can be expanded."""
    plain = expanded(graph, opset)
    if plain is not graph:
        run_passes(plain, _TIDYING, model.options, evaluate, Rewrites())
    return plain


def _in_own_opset(graph: Graph, model: Model) -> Graph:
    """Return a graph as the opset of its file can express it, or itself if that cannot."""
    own = max(OLDEST, model.source.opsets.get("", OLDEST))
    plain = said_in(graph, own, model)
    return graph if lacking(plain, own) else plain


def check_model_name(file: Path) -> Path:
    """Return the name of a model file to write; raises UsageError if it is not one."""
    if file.suffix.lower() not in (".onnx", *FORMATS):
        raise UsageError(f"{file}: models are written to .onnx files, as texts to .onnxtxt files")
    if not file.parent.is_dir():
        raise FileError(ENOENT, f"there is no folder '{file.parent}'", str(file))
    return file


def check_other_file(source: Loadable, target: Path) -> None:
    """Raise UsageError if a model would overwrite the file it is read from.

    Links lead to the same file, and so may two names.
    """
    if not isinstance(source, str | os.PathLike):
        return
    given = Path(os.fsdecode(source))
    data_file = target.with_name(f"{target.name}.data")
    for written in (target, data_file):
        if written.exists() and given.exists() and written.samefile(given):
            raise UsageError(
                f"{written} is the model itself; write to another file, or allow it with "
                "--force (force=True)"
            )


def model_title(source: Loadable) -> str:
    """Return the file's name, or ``model`` for a model in memory."""
    return os.fspath(source) if isinstance(source, str | os.PathLike) else "model"


def _external_size(path: Path | None, proto: ModelProto) -> int:
    outside = any(tensor.external_data for tensor in proto.graph.initializer)
    return path.with_name(f"{path.name}.data").stat().st_size if path and outside else 0
