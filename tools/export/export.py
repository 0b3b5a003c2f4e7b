"""Export: the optimised graph, a graph with bound shapes, or a part of it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from errno import ENOENT
from pathlib import Path
from typing import Any

from onnx import ModelProto

from ...api import Loadable, Operators, load
from ...arguments import freezing, in_data_dir, public
from ...backends.numpy import evaluate
from ...importers.onnx.reading.texts import FORMATS
from ...importers.onnx.writing.encode import embedded
from ...importers.onnx.writing.expand import expanded
from ...importers.onnx.writing.export import About
from ...importers.onnx.writing.export import export as to_proto
from ...importers.onnx.writing.masks import with_full_masks
from ...importers.onnx.writing.save import save
from ...importers.onnx.writing.sparse import smaller
from ...runtime.base.arguments import dims as dim_texts
from ...runtime.base.arguments import shapes as shape_texts
from ...runtime.base.arguments import words
from ...runtime.errors import FileError, InputError, UsageError
from ...runtime.ir.graph import Graph, Value
from ...runtime.ir.types import Array
from ...runtime.options import NARROW
from ...runtime.passes import STATIC_PASSES, Rewrites
from ...runtime.passes import optimise as run_passes
from ...runtime.session.model import Model
from ...version import __version__
from ..common.console import Say, silent
from ..common.deadline import limited
from ..common.inputs import Given, Inputs, asked, given_inputs
from ..common.shapes import Dims, Shapes
from ..common.tensors import tensor
from ..verdict.agreement import Agreement, Word
from ..verdict.error_bounds import Judge, overall
from ..verdict.judged import Judged
from .bound import bound

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


@public()
@in_data_dir
@limited
def export(
    source: Loadable,
    file: str | os.PathLike[str] | None = None,
    *,
    optimise: bool = True,
    opset: int | None = None,
    shapes: Shapes = (),
    dims: Dims = (),
    external: int | None = None,
    sparse: bool = False,
    force: bool = False,
    freeze: Mapping[str, Array] | None = None,
    weights: Mapping[str, Array] | None = None,
    operators: Operators | None = None,
    external_data_dir: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    **options: Any,
) -> ExportResult:
    """Write a model as ONNX, optimised or as imported.

    Args:
        source: a path, bytes, or a `ModelProto`.
        file: where to write it; None to only return it.
        optimise: whether to run the passes.
        opset: version of ai.onnx to write; if None, the lowest one from that of `source` on in
            which every node can be written unchanged.
        shapes: ``{"image": (1, 3, 224, 224)}`` to fix the shapes of inputs.
        dims: ``{"batch": 4}`` to fix symbolic dimensions.
        external: constants of at least this many bytes go to ``FILE.data``; if None, only if the
            model exceeds 2 GB.
        sparse: whether constants become sparse initializers, which stay in the file, where those
            take fewer bytes, as those of pruned weights do.
        force: whether the source file may be overwritten.
        freeze: arrays for inputs that become constants, by name.
        weights: other weights by name; see `tercet.load`.
        operators: custom operators; see `tercet.load`.
        external_data_dir: the folder of the model's external data; its own if None.
        timeout: time limit in seconds; None for no limit.
        **options: further fields of `Options`, such as `stop_at`; weights stay quantized unless
            ``keep_quantized=False``. With ``precision="float16"`` or ``"bfloat16"``, the operations
            that tolerate it are written in that type; inputs and outputs keep theirs.

    Raises:
        UnsupportedError: a node cannot be written in the requested opset.
        ModelError: the model cannot be read, or rejects inputs of these shapes.
        InputError: `shapes` or `dims` do not fit the model.
        OSError: the file cannot be written.
    """
    texts = shape_texts("shapes", shapes), dim_texts("dims", dims)
    options.setdefault("keep_quantized", True)
    if not optimise and options.get("precision") in NARROW:
        raise UsageError(
            f"a pass lowers the precision to {options['precision']}, and no pass runs: write the "
            "optimised graph (without --no-optimise, optimise=False)"
        )
    with load(source, freeze=freeze, weights=weights, operators=operators, **options) as model:
        graph = model.graph if optimise else model.imported
        if any(texts):
            graph = bound(model, graph, *texts, optimise=optimise)
        found = write_model(
            model,
            graph,
            source,
            file,
            opset=opset,
            external=external,
            sparse=sparse,
            force=force,
        )
        if not freeze:
            return found
        folded = _folded(model.imported, graph, freeze)
        return replace(found, frozen=tuple(freeze), folded=folded)


@public()
@in_data_dir
@limited
def simplify(
    source: Loadable,
    file: str | os.PathLike[str] | None = None,
    inputs: Given = None,
    *,
    seed: int = 0,
    opset: int | None = None,
    shapes: Shapes = (),
    dims: Dims = (),
    external: int | None = None,
    sparse: bool = False,
    force: bool = False,
    freeze: Mapping[str, Array] | None = None,
    operators: Operators | None = None,
    external_data_dir: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    allow_inconclusive: bool = False,
    say: Say = silent,
    **options: Any,
) -> ExportResult:
    """Write the optimised graph as ONNX, read it back, and compare it with the original.

    Args:
        source: a path, bytes, or a `ModelProto`.
        file: where to write it; None to only return it.
        inputs: the inputs of both: arrays by name or in a list by position; an .npz file or a
            folder of ONNX test data; random ones if None.
        seed: seed of random inputs.
        opset: as for `export`.
        shapes: as for `export`.
        dims: as for `export`.
        external: as for `export`.
        sparse: as for `export`.
        force: as for `export`.
        freeze: as for `export`; the original gets these arrays as inputs.
        operators: custom operators; see `tercet.load`.
        external_data_dir: the folder of the model's external data; its own if None.
        timeout: time limit in seconds; None for no limit.
        allow_inconclusive: whether `ExportResult.exit_code` is 0 for inconclusive results.
        say: called with a description of each stage.
        **options: further fields of `Options`, as for `export`: with ``precision="float16"`` or
            ``"bfloat16"``, rounding to that format is allowed for.

    Returns:
        The result; check `ok`.

    Raises:
        See `export`; and InputError if inputs do not fit.
    """
    say("optimising")
    found = export(
        source,
        file,
        opset=opset,
        shapes=shapes,
        dims=dims,
        external=external,
        sparse=sparse,
        force=force,
        freeze=freeze,
        operators=operators,
        **options,
    )
    say("running the original")
    plain: dict[str, Any] = {"stop_at": 0, "operators": operators}
    with load(source, freeze=freeze, **plain) as held:
        given = asked(None, seed, shapes, dims) if inputs is None else asked(inputs)
        feeds = given_inputs(held.inputs, given)
    everything = {**feeds.arrays, **(freeze or {})}
    with load(source, **plain) as original:
        with feeds.explained():
            expected = original.run(everything)
        judge = Judge(original.imported, everything, options.get("precision", "float32"))
        say("running what was written")
        with load(found.proto if found.file is None else found.file, **plain) as written:
            results = written.run(feeds.arrays)
        agreements = tuple(judge.outputs(expected, results))
    return replace(
        found, inputs=feeds, agreements=agreements, allow_inconclusive=allow_inconclusive
    )


@public(inputs=words("names of tensors"))
@in_data_dir
@freezing
@limited
def extract(
    source: Loadable,
    file: str | os.PathLike[str] | None = None,
    *,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    opset: int | None = None,
    external: int | None = None,
    sparse: bool = False,
    force: bool = False,
    shapes: Shapes = (),
    dims: Dims = (),
    freeze: Mapping[str, Any] | None = None,
    operators: Operators | None = None,
    external_data_dir: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
) -> ExportResult:
    """Write the part of a model that computes some tensors from others, unoptimised.

    Args:
        source: a path, bytes, or a `ModelProto`.
        file: where to write it; None to only return it.
        inputs: tensors that become inputs; if empty, those inputs of the model on which the outputs
            depend.
        outputs: tensors that become outputs; the model's outputs if empty.
        opset: as for `export`.
        external: as for `export`.
        sparse: as for `export`.
        force: as for `export`.
        shapes: as for `export`, for the model's own inputs.
        dims: as for `export`.
        freeze: arrays by name for inputs that become constants; see `tercet.load`.
        operators: custom operators; see `tercet.load`.
        external_data_dir: the folder of the model's external data; its own if None.
        timeout: time limit in seconds; None for no limit.

    Raises:
        InputError: `shapes` or `dims` do not fit, the model has no such tensor, or the outputs
            depend on further inputs.
        UnsupportedError: a node cannot be written in the requested opset.
        OSError: the file cannot be written.
    """
    texts = shape_texts("shapes", shapes), dim_texts("dims", dims)
    with load(source, stop_at=0, operators=operators) as model:
        graph = model.imported
        if any(texts):
            graph = bound(model, graph, *texts, optimise=False)
        part = cut(graph, inputs, outputs)
        return write_model(
            model,
            part,
            source,
            file,
            opset=opset,
            external=external,
            sparse=sparse,
            force=force,
        )


def cut(graph: Graph, inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
    """Return the part of a graph between named tensors; see `extract`."""
    results = {name: tensor(graph, name) for name in outputs} or dict(graph.outputs)
    starts = [tensor(graph, name) for name in dict.fromkeys(inputs)]
    needed = _dependencies(results.values(), set(starts))
    if inputs:
        missing = [v.name for v in graph.inputs if v in needed and v not in starts]
    else:
        starts, missing = [v for v in graph.inputs if v in needed], []
    if missing:
        raise InputError(
            f"{', '.join(results)} cannot be computed from {', '.join(inputs)} alone: "
            f"{', '.join(missing)} is read, too; name it among the inputs"
        )
    return graph.cut(starts, results)


def _dependencies(results: Any, given: set[Value]) -> set[Value]:
    """Return everything that some values depend on, stopping at given ones."""
    found: set[Value] = set()
    waiting = list(results)
    while waiting:
        value = waiting.pop()
        if value not in found:
            found.add(value)
            if value not in given and value.producer is not None:
                waiting.extend(value.producer.distinct_reads)
    return found


def _folded(imported: Graph, graph: Graph, names: Iterable[str]) -> tuple[str, ...]:
    """Return the folded nodes, which depended only on frozen inputs and constants."""
    left = {name for node in graph.walk() for name in node.origin}
    frozen = {imported.values[name] for name in names}
    known = set(imported.constants)
    found: list[str] = []
    for node in imported.nodes:
        if not known.issuperset(node.distinct_reads):
            continue
        known.update(node.outputs)
        if not frozen.isdisjoint(node.distinct_reads):
            frozen.update(node.outputs)
            found.extend(name for name in node.origin if name not in left)
    return tuple(found)


# ── writing ──────────────────────────────────────────────────────────────────────────────────────


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
) -> ExportResult:
    """Write a graph derived from a model; see `export`."""
    about = About(version=__version__, metadata=model.source.metadata)
    opsets = None if opset is None else {"": opset}
    minimum = model.source.opsets
    path = None if file is None else check_model_name(Path(file))
    if path is not None and not force:
        check_other_file(source, path)
    if opset is not None:
        graph = said_in(graph, opset, model)
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
