"""Which operators of a file a backend runs, which not, and why, without running it.

The model is planned as for a run, with a catch-all behind all backends for nodes that none of them
takes. So the answers are those of a real run, not of a table of supported operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ...backends.numpy import evaluate
from ...runtime.errors import UnsupportedError
from ...runtime.ir.graph import Graph, Node
from ...runtime.ir.types import HostValue
from ...runtime.options import Options
from ...runtime.plan.backend import (
    Backend,
    BuildContext,
    Claim,
    Decline,
    Device,
    Interpreter,
    Run,
    View,
    Weights,
)
from ...runtime.plan.host import HOST
from ...runtime.plan.partition import holds
from ...runtime.session.model import Model
from ...runtime.session.placement import PlacedRow
from .paper import paper_rows

if TYPE_CHECKING:
    from ...backends.cuda.recipe.targets import Target
from ...runtime.ir.unknown import NOBODY, REASON, Opaque

#: The backend shown for nodes removed by passes, and for those decided at run time.
PASSES, LATER, PLAN = "passes", "run", "plan"


@dataclass(frozen=True, slots=True)
class Capability:
    """Nodes of one operator with the same outcome.

    Attributes:
        operator: its name.
        backend: the backend; ``nobody``; ``plan`` for views; ``passes`` for nodes removed by
            passes; ``run`` if decided at run time.
        nodes: number of nodes.
        where: their positions in the file, from 1: ``1-17, 20``; nodes of bodies count as their
            owner.
        reason: why backends with higher priority declined.
    """

    operator: str
    backend: str
    nodes: int
    where: str
    reason: str

    @property
    def ok(self) -> bool:
        """Whether a backend runs them, or they need not be run."""
        return self.backend != NOBODY

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return asdict(self)


def capabilities(
    imported: Graph, optimised: Graph, rows: Iterable[PlacedRow]
) -> tuple[Capability, ...]:
    """Return the outcome for every node of a file, unsupported ones first.

    Args:
        imported: the file's graph.
        optimised: the graph after the passes.
        rows: of the plan, made with a `Nobody` behind the backends.
    """
    fates: dict[str, tuple[str, str]] = {}
    for row in rows:
        if row.kind == "later":
            continue
        for name in row.nodes:  # of several rows, the first that computes something
            if fates.get(name, (PLAN,))[0] == PLAN:
                fates[name] = row.backend, row.reason
    left = {name for node in optimised.walk() for name in (node.name, *node.origin)}
    groups: dict[tuple[str, str, str], list[int]] = {}
    for number, node in enumerate(imported.walk(), 1):
        later = (LATER, "planned when it first runs") if node.name in left else (PASSES, "")
        backend, reason = fates.get(node.name, later)
        if isinstance(node.op, Opaque):
            backend, reason = NOBODY, REASON
        groups.setdefault((node.kind, backend, reason), []).append(number)
    found = [
        Capability(operator, backend, len(numbers), ranges_text(numbers), reason)
        for (operator, backend, reason), numbers in groups.items()
    ]
    rank = {NOBODY: 0, LATER: 2, PASSES: 4, PLAN: 3}
    return tuple(sorted(found, key=lambda c: (rank.get(c.backend, 1), -c.nodes, c.operator)))


def ranges_text(numbers: Sequence[int]) -> str:
    """Return ascending numbers with runs abbreviated: ``1-17, 20``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)


class Nobody:
    """A catch-all backend that claims every node and runs none."""

    name = NOBODY

    @property
    def device(self) -> Device:
        """The host."""
        return HOST

    def claim(self, graph: Graph, free: Set[Node], options: Options) -> Iterable[Claim | Decline]:
        """Claim everything."""
        for node in graph.nodes:
            if node in free and not node.op.view:
                yield Claim((node,), _Nothing)


class _NobodyAlone(Nobody):
    """The same, for nodes on values that no plan can hold."""

    def evaluate(
        self, node: Node, values: Sequence[HostValue], weights: Weights
    ) -> Sequence[HostValue]:
        """Raise UnsupportedError."""
        raise UnsupportedError(f"nobody runs '{node.name}'")


@dataclass(frozen=True, slots=True)
class _Nothing:
    """A step that is planned but never run."""

    site: BuildContext
    kernel: str = ""
    scratch: int = 0
    capturable: bool = False

    def bind(
        self, inputs: tuple[View, ...], outputs: tuple[View, ...], scratch: View | None
    ) -> Run:
        def refuse(stream: object) -> None:
            raise UnsupportedError(f"nobody runs '{self.site.nodes[0].name}'")

        return refuse


def capabilities_of(
    model: Model,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    target: Target | None = None,
    behind: Sequence[Backend] = (),
    backend: str = "cuda",
) -> tuple[Capability, ...]:
    """Return the outcome for every node of a model on its backends.

    Args:
        model: a loaded model; it is not run.
        shapes: of the inputs.
        target: a GPU that need not be present, instead of the model's backends.
        behind: with `target`: backends for nodes that the first one declines.
        backend: with `target`: the first one, ``cuda`` or ``tensorrt``.
    """
    chain, graph = model.backends, model.imported
    if target is not None:
        on_paper = paper_rows(model, target, shapes, (*behind, _NobodyAlone()), backend)
        if not any(isinstance(each, Interpreter) for each in behind):
            on_paper = _without_interpreter(model.graph, on_paper, backend)
        return capabilities(graph, model.graph, on_paper)
    lonely: dict[str, str] = {}
    try:
        rows = _rows(model, (*chain, Nobody()), shapes)
    except UnsupportedError as error:
        for refusal in error.refusals:
            if refusal.backend == NOBODY:
                continue
            said = f"{refusal.backend}: {refusal.reason}"
            before = lonely.get(refusal.node)
            lonely[refusal.node] = said if before is None else f"{before}; {said}"
        rows = _rows(model, (*chain, _NobodyAlone()), shapes)
    origins = {node.name: node.origin for node in model.graph.walk()}
    refused = {n: why for node, why in lonely.items() for n in (node, *origins.get(node, ()))}
    rows = [
        replace(row, backend=NOBODY, reason=refused[row.nodes[0]])
        if row.nodes and row.nodes[0] in refused
        else row
        for row in rows
    ]
    return capabilities(graph, model.graph, rows)


def _without_interpreter(
    graph: Graph, rows: Iterable[PlacedRow], backend: str
) -> Iterator[PlacedRow]:
    """Correct rows of single nodes on the host, which a run on a device alone does not have.

    Such nodes are planned when their sizes are known, unless no device can hold their tensors.
    """
    nodes = {name: node for node in graph.walk() for name in (node.name, *node.origin)}
    for row in rows:
        if row.kind != "host" or row.backend != "numpy":
            yield row
        elif any(not holds(each) for name in row.nodes if (each := nodes.get(name)) is not None):
            yield replace(row, backend=NOBODY, reason=f"{backend}: {row.reason}")
        else:
            yield replace(row, backend=LATER)


def _rows(
    model: Model, backends: Sequence[Backend], shapes: Mapping[str, tuple[int, ...]] | None
) -> list[PlacedRow]:
    with Model(model.imported, backends, model.options, evaluate, model.source) as planned:
        return list(planned.placement(shapes))
