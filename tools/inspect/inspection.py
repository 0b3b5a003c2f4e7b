"""Inspection of a model: contents, cost, passes, placement and memory.

The module is not called ``inspect``, because Python would mistake it for its own when a script of
this folder is started by its path.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ...api import Loadable, Operators, load, load_to_plan
from ...arguments import freezing, in_data_dir, public
from ...backends import open_backends
from ...backends.numpy import evaluate
from ...importers.onnx.reading.read import in_memory
from ...runtime.base.arguments import dims as dim_texts
from ...runtime.base.arguments import shapes as shape_texts
from ...runtime.base.notebook import Shown
from ...runtime.errors import BackendUnavailable, ModelError, UnsupportedError, UsageError
from ...runtime.ir.graph import Graph
from ...runtime.ir.infer import specialise, specialise_as_asked
from ...runtime.ir.types import TensorType, ValueType
from ...runtime.ir.unknown import UnknownOperator, UnknownOperators, stand_in
from ...runtime.options import Options
from ...runtime.passes import STATIC_PASSES, optimise
from ...runtime.passes.driver import RefusedRewrite, Rewrite
from ...runtime.plan.plan import Memory
from ...runtime.session.io_types import TensorInfo
from ...runtime.session.model import Model
from ...runtime.session.model_source import ModelSource
from ...runtime.session.placement import Placement
from ..common.console import Say, silent
from ..common.cost import (
    Constants,
    NodeCost,
    OperatorCost,
    activations,
    constants,
    nodes,
)
from ..common.cost import operators as operator_costs
from ..common.deadline import limited
from ..common.inputs import explained
from ..common.roofline import Rates
from ..common.shapes import Dims, Shapes, assumed_dims, input_shapes
from ..common.views import shown
from ..export.writing import model_title
from .capability import Capability
from .lint import Finding
from .lint import lint as findings_of
from .paper import PLANNED, target_of
from .pass_texts import PassText, differences_of, pass_texts
from .planned import Planned
from .planned_cost import PlannedCost, planned_costs

if TYPE_CHECKING:
    from ...backends.cuda.recipe.targets import Target


@dataclass(frozen=True, slots=True)
class Passes:
    """What the passes did while shapes were symbolic.

    Attributes:
        rewrites: all rewrites, in order.
        counts: rewrites by pass.
        operators: number of nodes before and after, by operator.
        before: constants of the file.
        after: remaining constants.
        texts: the graph before the passes, and after each pass that changed it.
        refused: rewrites that were refused, with reasons.
    """

    rewrites: tuple[Rewrite, ...]
    counts: Mapping[str, int]
    operators: Mapping[str, tuple[int, int]]
    before: Constants
    after: Constants
    texts: tuple[PassText, ...] = field(default=(), repr=False)
    refused: tuple[RefusedRewrite, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        pairs = self.operators.items()
        return {
            "counts": dict(self.counts),
            "rewrites": [asdict(rewrite) for rewrite in self.rewrites],
            "refused": [asdict(refused) for refused in self.refused],
            "operators": {kind: {"before": b, "after": a} for kind, (b, a) in pairs},
            "constants": {"before": asdict(self.before), "after": asdict(self.after)},
            "changes": [
                {"pass": name, "rewrites": text.rewrites, "diff": difference}
                for text, (name, difference) in zip(
                    self.texts[1:], differences_of(self.texts), strict=True
                )
            ],
        }


@dataclass(frozen=True, slots=True, repr=False)
class Inspection(Shown):
    """The result of `inspect`.

    Attributes:
        model: the file.
        nbytes: its size without external data.
        source: the file's metadata.
        inputs: with symbolic dimensions.
        outputs: with symbolic dimensions.
        shapes: input shapes, to which MACs, activations and plan refer.
        operators: cost of the file's nodes by operator.
        constants: the file's constants.
        activations: bytes of all computed values that depend on inputs; None if unknown.
        note: why costs are unknown; empty if they are known.
        passes: None if not requested.
        backend: the backend of placement and memory; empty if neither was requested.
        placement: None if not requested.
        rates: of the GPU of the placement, by its data sheet; None without one.
        memory: None if not requested.
        nodes: cost of each node; empty if not requested.
        capabilities: outcome of the nodes on the backend; None if not requested.
        graph: the file's graph, with integer shapes if known, or the optimised one if passes were
            requested.
        strange: unknown operators; nodes that read from them have no types.
        findings: slow patterns; None if not requested.
        floats: layers of quantized tensors that the placement computes as floats, and why.
    """

    model: str
    nbytes: int
    source: ModelSource
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    shapes: Mapping[str, tuple[int, ...]]
    operators: tuple[OperatorCost, ...]
    constants: Constants
    activations: int | None
    note: str = ""
    passes: Passes | None = None
    backend: str = ""
    placement: Placement | None = field(default=None, repr=False)
    rates: Rates | None = None
    memory: Memory | None = None
    nodes: tuple[NodeCost, ...] = field(default=(), repr=False)
    capabilities: tuple[Capability, ...] | None = field(default=None, repr=False)
    graph: Graph | None = field(default=None, repr=False)
    strange: tuple[UnknownOperator, ...] = ()
    findings: tuple[Finding, ...] | None = field(default=None, repr=False)
    floats: tuple[str, ...] = ()

    def _about(self) -> str:
        return f"{self.model}: {self.nbytes} bytes, {sum(r.nodes for r in self.operators)} nodes"

    def __str__(self) -> str:
        return shown(self)

    @property
    def costs(self) -> tuple[PlannedCost, ...]:
        """The rows of the placement with their work and limits; empty without a placement."""
        return () if self.placement is None else planned_costs(self.placement, self.rates)

    @property
    def macs(self) -> int:
        """Total multiply-accumulates of operators with known ones."""
        return sum(row.macs for row in self.operators)

    @property
    def unknown(self) -> int:
        """Number of nodes with unknown MACs."""
        return sum(row.unknown for row in self.operators)

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        found: dict[str, Any] = {
            "model": self.model,
            "bytes": self.nbytes,
            "producer": self.source.producer,
            "ir_version": self.source.ir_version,
            "opsets": {domain or "ai.onnx": v for domain, v in self.source.opsets.items()},
            "metadata": dict(self.source.metadata),
            "inputs": [f"{info.name}: {info.type or '?'}" for info in self.inputs],
            "outputs": [f"{info.name}: {info.type or '?'}" for info in self.outputs],
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "operators": [asdict(row) for row in self.operators],
            "constants": asdict(self.constants),
            "macs": self.macs,
            "macs_unknown_nodes": self.unknown,
            "activation_bytes": self.activations,
            "note": self.note,
            "unknown_operators": [asdict(each) for each in self.strange],
        }
        if self.passes is not None:
            found["passes"] = self.passes.to_dict()
        if self.backend:
            found["backend"] = self.backend
        if self.placement is not None:
            found["placement"] = [row.to_dict() for row in self.costs]
            found["rates"] = None if self.rates is None else self.rates.to_dict()
            found["floats"] = list(self.floats)
        if self.memory is not None:
            found["memory"] = memory_dict(self.memory)
        if self.nodes:
            found["nodes"] = [asdict(node) for node in self.nodes]
        if self.capabilities is not None:
            found["capabilities"] = [each.to_dict() for each in self.capabilities]
        if self.findings is not None:
            found["findings"] = [each.to_dict() for each in self.findings]
        return found

    def table(self) -> list[dict[str, Any]]:
        """Return one flat row per operator, for `pandas.DataFrame`."""
        return [asdict(row) for row in self.operators]


@public()
@in_data_dir
@freezing
@limited
def inspect(
    source: Loadable,
    *,
    passes: bool = False,
    placement: str | None = None,
    memory: bool = False,
    cost: bool = False,
    capability: str | None = None,
    lint: bool = False,
    target: str | None = None,
    fallback: str | None = None,
    precision: str = "float32",
    shapes: Shapes = (),
    dims: Dims = (),
    freeze: Mapping[str, Any] | None = None,
    operators: Operators | None = None,
    external_data_dir: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    say: Say = silent,
    **options: Any,
) -> Inspection:
    """Inspect a model.

    Args:
        source: what `tercet.load` takes.
        passes: whether to list what the passes do.
        placement: the backend whose placement to show.
        memory: whether to show the memory layout, on the backend of `placement`, else on numpy.
        cost: whether to list the cost of every node.
        capability: the backend whose supported operators to show; the same as that of `placement`
            if both are given.
        lint: whether to look for patterns that cost time or memory: in the optimised graph, and
            with `placement` in its rows.
        target: a GPU that need not be present, such as ``sm_90a`` or ``sm_86:46`` (46
            multiprocessors): with `placement` or `capability`, what ``cuda`` would do on it, or
            ``tensorrt``, which builds its engines for it.
        fallback: backend for nodes that this one declines.
        precision: compute precision of float32 tensors.
        shapes: input shapes by name: ``{"image": (1, 3, 224, 224)}``.
        dims: sizes of symbolic dimensions: ``{"batch": 4}``; 1 if not given.
        freeze: arrays by name for inputs that become constants; see `tercet.load`.
        operators: custom operators; see `tercet.load`.
        external_data_dir: the folder of the model's external data; its own if None.
        timeout: time limit in seconds; None for no limit.
        say: called with a description of each stage.
        **options: further fields of `Options`.

    Raises:
        ModelError: the model cannot be read, or rejects these input shapes.
        BackendUnavailable: the backend is unavailable here.
        UnsupportedError: the backend declines nodes; lists each with the reason.
    """
    if placement and capability and placement != capability:
        raise UsageError(f"one backend at a time: {placement} or {capability}")
    say("loading")
    plan_wanted = placement is not None or memory
    chosen: dict[str, Any] = {"fallback": fallback, "precision": precision, **options}
    chosen["operators"] = operators
    texts = shape_texts("shapes", shapes), dim_texts("dims", dims)
    if not (passes or plan_wanted or capability or lint):
        chosen["stop_at"] = 0
    backend = placement or capability or "numpy"
    gpu = _target(target, backend, memory=memory, capability=capability)
    opener = load
    if gpu is not None:
        opener = load_to_plan
        del chosen["fallback"]
    try:
        held, strange = _open(opener, source, backend, chosen)
    except BackendUnavailable as error:
        if backend in PLANNED:
            error.add_note("or give a target, such as sm_90a, to plan for a GPU that is not here")
        raise
    with held as model, explained(assumed_dims(model.inputs, *texts)):
        found = input_shapes(model.inputs, *texts)
        bound, note = _bind(model, found, any(texts))
        planned = Planned(model, found, backend, fallback, gpu)
        if plan_wanted:
            say("planning")
            planned.prepare()
        if capability:
            say("asking the backends")
        placed = planned.placement if placement is not None else None
        rates = planned.rates(precision) if placement is not None else None
        drawn = _drawn(model, bound, found) if passes or lint else bound or model.imported
        rows = () if placed is None else planned_costs(placed, rates)
        refused = model.rewrites.refused
        return Inspection(
            model=model_title(source),
            nbytes=_size(source),
            source=model.source,
            inputs=model.inputs,
            outputs=model.outputs,
            shapes=found,
            operators=operator_costs(model.imported, bound),
            constants=constants(model.imported),
            activations=activations(bound) if bound is not None else None,
            note=note,
            passes=_passes(model, bound and _types(model, found)) if passes else None,
            backend=planned.title if plan_wanted or capability else "",
            placement=placed,
            rates=rates,
            memory=planned.memory if memory else None,
            nodes=nodes(model.imported, bound) if cost else (),
            capabilities=planned.capabilities if capability else None,
            graph=drawn if passes else bound or model.imported,
            strange=strange,
            findings=findings_of(model.imported, drawn, refused, rows) if lint else None,
            floats=() if placed is None else _floats(model),
        )


def _floats(model: Model) -> tuple[str, ...]:
    """Return which layers of quantized tensors are no layers of integers, and why."""
    refused = model.rewrites.refused
    return tuple(each.text for each in refused if each.name == "multiply_integers")


def _target(
    text: str | None, backend: str, *, memory: bool, capability: str | None
) -> Target | None:
    """Return the GPU to plan for instead of the present one; None to use that.

    What cuda can run needs no GPU: without one, an H200 is assumed.
    """
    if text is None:
        return target_of("sm_90a") if capability == "cuda" and not _is_here(backend) else None
    if memory and backend == "tensorrt":
        raise UsageError("no memory with a target on tensorrt: its engines are not loaded")
    if backend not in PLANNED:
        who = " or ".join(PLANNED)
        raise UsageError(
            f"target {text}: the backend of placement or capability must be {who}, not {backend}; "
            "add --placement cuda"
        )
    return target_of(text)


def _is_here(backend: str) -> bool:
    try:
        open_backends(backend, Options())
    except BackendUnavailable:
        return False
    return True


def _size(file: Loadable) -> int:
    """Return the size of a model's file, or of the bytes given instead."""
    if isinstance(file, bytes):
        return len(file)
    if isinstance(file, str | os.PathLike):
        return os.stat(file).st_size
    return in_memory(file).ByteSize()


def _open(
    opener: Callable[..., Model], file: Loadable, backend: str, options: Mapping[str, Any]
) -> tuple[Model, tuple[UnknownOperator, ...]]:
    """Load a model with placeholders for unknown operators; return these, too.

    Raises:
        UnknownOperators: another node needs a type that only they would give.
    """
    try:
        return opener(file, backend, **options), ()
    except UnknownOperators as error:
        found = error
    unknown = found.operators
    stand_ins = {(each.domain, each.name): stand_in(each.domain, each.name) for each in unknown}
    given = {**(options.get("operators") or {}), **stand_ins}
    try:
        return opener(file, backend, **{**options, "operators": given}), unknown
    except UnsupportedError as error:
        raise found from error


def _bind(
    model: Model, shapes: Mapping[str, tuple[int, ...]], given: bool
) -> tuple[Graph | None, str]:
    """Return the file's graph with integer shapes, or None and the reason.

    Symbols not set by the user are 1, which may be invalid for a model: that is not an error here.
    """
    missing = [info.name for info in model.inputs if info.name not in shapes]
    if missing:
        return None, f"the shape of '{missing[0]}' is not known: give it with --shape (shapes)"
    types = _types(model, shapes)
    if len(types) < len(model.inputs):
        return None, "an input is not a tensor"
    try:
        bind = specialise_as_asked if given else specialise
        return bind(model.imported, types), ""
    except ModelError as error:
        if given or all(isinstance(d, int) for info in model.inputs for d in info.shape or ()):
            raise
        remedy = "--dim and --shape (dims, shapes) set them"
        return None, f"not with every symbolic dimension 1: {error}; {remedy}"


def _types(model: Model, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, ValueType]:
    return {
        info.name: TensorType(info.dtype, shapes[info.name])
        for info in model.inputs
        if info.dtype is not None
    }


def _drawn(model: Model, bound: Graph | None, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
    """Return the optimised graph, with integer shapes if known."""
    if bound is None:
        return model.graph
    graph = specialise(model.graph, _types(model, shapes))
    optimise(graph, STATIC_PASSES, model.options, evaluate, model.rewrites.copy())
    return graph


def _passes(model: Model, types: Mapping[str, ValueType] | None) -> Passes:
    before, after = (Counter(n.kind for n in g.walk()) for g in (model.imported, model.graph))
    return Passes(
        rewrites=tuple(model.rewrites),
        counts=model.rewrites.counts,
        operators={kind: (before[kind], after[kind]) for kind in sorted({*before, *after})},
        before=constants(model.imported),
        after=constants(model.graph),
        texts=pass_texts(model.imported, model.options, types),
        refused=tuple(model.rewrites.refused),
    )


def memory_dict(memory: Memory) -> dict[str, dict[str, int]]:
    """Return the bytes by device and kind."""
    kinds = asdict(memory)
    devices = dict.fromkeys(device for by_device in kinds.values() for device in by_device)
    return {
        device: {kind: by_device.get(device, 0) for kind, by_device in kinds.items()}
        for device in devices
    }
