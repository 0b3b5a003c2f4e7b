"""The algorithms of each node on the cuda backend: which is chosen, and why not the others.

Nothing is run, and no GPU is needed: without one, an H200 is assumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...api import Loadable, load_to_plan
from ...runtime.errors import BackendUnavailable
from ...runtime.ir.graph import Node
from ...runtime.options import Options
from ...runtime.session.model import Model
from ..common.console import Say, silent
from ..common.shapes import input_shapes
from ..inspect.paper import describe_target, target_of

if TYPE_CHECKING:
    from ...backends.cuda.algorithms.selection import TuningTask
    from ...backends.cuda.recipe.targets import Target


@dataclass(frozen=True, slots=True)
class AlgorithmRow:
    """One algorithm of a node.

    Attributes:
        algorithm: its name.
        chosen: whether estimates choose it.
        estimate: estimated microseconds; None if it does not apply.
        workspace: bytes of scratch memory.
        reason: why it does not apply.
    """

    algorithm: str
    chosen: bool
    estimate: float | None
    workspace: int
    reason: str


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node and its selector.

    Attributes:
        node: its name.
        operator: its operator.
        task: the problem.
        forms: further variants that the tuner would try, such as tiles, by algorithm.
        algorithms: in the order of the selector.
    """

    node: str
    operator: str
    task: str
    forms: Mapping[str, tuple[str, ...]]
    algorithms: tuple[AlgorithmRow, ...]


@dataclass(frozen=True, slots=True)
class Algorithms:
    """The selectors of a model.

    Attributes:
        model: the file.
        target: the target GPU.
        nodes: every node that has a selector.
    """

    model: str
    target: str
    nodes: tuple[NodeRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return asdict(self)


def algorithms(
    file: Path,
    *,
    shapes: Sequence[str] = (),
    dims: Sequence[str] = (),
    target: str | None = None,
    say: Say = silent,
    **options: Any,
) -> Algorithms:
    """List the algorithms of each node that has several.

    Args:
        file: its path.
        shapes: ``name=1x3x224x224``; see `input_shapes`.
        dims: ``symbol=size``; 1 if not given.
        target: a GPU that need not be present, such as ``sm_86``; if None, the present one or an
            H200.
        say: called with a description of each stage.
        **options: fields of `Options`.

    Raises:
        ModelError: the model cannot be read, or rejects these input shapes.
    """
    say("loading")
    with on_paper(file, options) as (model, chosen):
        found = input_shapes(model.inputs, shapes, dims)
        say("planning")
        from ...backends.cuda.algorithms.registry import Setting
        from ...backends.cuda.tuning.tuner import works_of

        gpu = _target(chosen, target)
        works = works_of(nodes_of(model, found), Setting(gpu, chosen))
        return Algorithms(
            model=str(file),
            target=describe_target(gpu),
            nodes=tuple(_node_row(work) for work in works),
        )


@contextmanager
def on_paper(file: Loadable, options: Mapping[str, Any]) -> Iterator[tuple[Model, Options]]:
    """Load a model for numpy to plan it for a GPU, with the options that apply to the GPU.

    Raises:
        ModelError: the model cannot be read.
    """
    of_gpu = {name: options[name] for name in ("workspace", "device") if name in options}
    rest = {name: value for name, value in options.items() if name not in of_gpu}
    rest.pop("fallback", None)
    with load_to_plan(file, "cuda", **rest) as model:
        yield model, replace(model.options, **of_gpu)


def nodes_of(model: Model, shapes: dict[str, tuple[int, ...]]) -> list[Node]:
    """Return the nodes of the plans of a model, in order."""
    program = model.prepare(shapes)
    rows = (row for part in program.walk() for row in part.rows)
    return [node for row in rows for node in row.nodes]


def _target(options: Options, name: str | None) -> Target:
    """Return the GPU of this name, or the present one, or an H200."""
    from ...backends.cuda.recipe.targets import H200

    if name is not None:
        return target_of(name)
    try:
        from ...backends.cuda.device import open_device

        return open_device(options.cache, ordinal=options.device).compiler.target
    except (BackendUnavailable, ImportError):  # no GPU, or no packages for CUDA
        return H200


def _node_row(work: TuningTask) -> NodeRow:
    taken = work.selector.pick(work.task).algorithm
    rows: list[AlgorithmRow] = []
    forms: dict[str, tuple[str, ...]] = {}
    candidates = work.selector.candidates(work.task)
    for algorithm, candidate in zip(work.selector.algorithms, candidates, strict=True):
        usable = candidate.recipe is not None
        if usable and (found := algorithm.variants(work.task)):
            forms[algorithm.name] = tuple(dict.fromkeys(found))
        rows.append(
            AlgorithmRow(
                algorithm=algorithm.name,
                chosen=usable and algorithm.name == taken,
                estimate=candidate.microseconds if usable else None,
                workspace=candidate.workspace,
                reason=candidate.reason,
            )
        )
    node = work.node
    return NodeRow(node.name, node.kind, work.task.signature, forms, tuple(rows))
