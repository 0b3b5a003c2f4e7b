"""The algorithms of each node on the cuda backend: which is chosen, and why not the others.

Nothing is run, and no GPU is needed: without one, an H200 is assumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...api import load
from ...runtime.errors import BackendUnavailable
from ...runtime.ir.graph import Node
from ...runtime.options import Options
from ...runtime.session.model import Model
from ..common.console import Say, silent
from ..common.inputs import input_shapes
from ..inspect.paper import describe_target, target_of

if TYPE_CHECKING:
    from ...backends.cuda.recipe.targets import Target
    from ...backends.cuda.tuning.tuner import Tuner, TuningResult, TuningTask


@dataclass(frozen=True, slots=True)
class AlgorithmRow:
    """One algorithm of a node.

    Attributes:
        algorithm: its name.
        form: the chosen or measured variant, such as a tile size.
        chosen: whether it is used.
        estimate: estimated microseconds; None if it does not apply.
        measured: measured microseconds, or None.
        workspace: bytes of scratch memory.
        reason: why it does not apply.
    """

    algorithm: str
    form: str
    chosen: bool
    estimate: float | None
    measured: float | None
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
        **options: fields of `Options`; with `tune`, stored measurements are shown.

    Raises:
        ModelError: the model cannot be read, or rejects these input shapes.
        BackendUnavailable: the packages for CUDA are missing.
    """
    say("loading")
    with on_paper(file, options) as (model, chosen):
        found = input_shapes(model.inputs, shapes, dims)
        say("planning")
        works, gpu, tuner = _works(nodes_of(model, found), chosen, target)
        known = tuner.results(works, silent) if tuner is not None else []
        results = {result.task: result for result in known}
        return Algorithms(
            model=str(file),
            target=describe_target(gpu),
            nodes=tuple(_node_row(work, results.get(work.task.signature)) for work in works),
        )


@contextmanager
def on_paper(file: Path, options: Mapping[str, Any]) -> Iterator[tuple[Model, Options]]:
    """Load a model for numpy to plan it for a GPU, with the options that apply to the GPU.

    Raises:
        ModelError: the model cannot be read.
    """
    of_gpu = {name: options[name] for name in ("workspace", "device") if name in options}
    rest = {name: value for name, value in options.items() if name not in of_gpu}
    with load(file, "numpy", **{**rest, "fallback": None}) as model:
        yield model, replace(model.options, **of_gpu)


def nodes_of(model: Model, shapes: dict[str, tuple[int, ...]]) -> list[Node]:
    """Return the nodes of the plans of a model, in order."""
    program = model.prepare(shapes)
    rows = (row for part in program.walk() for row in part.rows)
    return [node for row in rows for node in row.nodes]


def _works(
    nodes: Sequence[Node], options: Options, name: str | None
) -> tuple[list[TuningTask], Target, Tuner | None]:
    """Return the tasks, the target GPU, and the stored measurements."""
    try:
        from ...backends.cuda.algorithms.registry import Setting
        from ...backends.cuda.device import open_device
        from ...backends.cuda.recipe.targets import H200
        from ...backends.cuda.tuning.tuner import tuner_of, works_of
    except ImportError as error:
        from ...backends.cuda import REMEDY

        raise BackendUnavailable(
            "cuda", f"the CUDA packages for Python are missing ({error})", REMEDY
        ) from None
    if name is not None:
        named = target_of(name)
        return works_of(nodes, Setting(named, options)), named, None
    try:
        device = open_device(options.cache, ordinal=options.device)
    except BackendUnavailable:
        return works_of(nodes, Setting(H200, options)), H200, None
    target = device.compiler.target
    works = works_of(nodes, Setting(target, options))
    return works, target, tuner_of(device, options.cache, measure=False)


def _node_row(work: TuningTask, result: TuningResult | None) -> NodeRow:
    picked = work.selector.pick(work.task)
    best = None if result is None or not work.task.setting.options.tune else result.best
    taken = picked.algorithm if best is None or work.task.setting.asked else best.algorithm
    rows: list[AlgorithmRow] = []
    forms: dict[str, tuple[str, ...]] = {}
    for algorithm, candidate in zip(
        work.selector.algorithms, work.selector.candidates(work.task), strict=True
    ):
        measured = None
        if result is not None:
            measured = next(
                (t for t in result.timings if t.algorithm == algorithm.name and not t.reason), None
            )
        usable = candidate.recipe is not None
        if usable and (found := algorithm.variants(work.task)):
            forms[algorithm.name] = tuple(dict.fromkeys(found))
        rows.append(
            AlgorithmRow(
                algorithm=algorithm.name,
                form=measured.variant if measured is not None else "",
                chosen=usable and algorithm.name == taken,
                estimate=candidate.microseconds if usable else None,
                measured=None if measured is None else measured.microseconds,
                workspace=candidate.workspace,
                reason=candidate.reason,
            )
        )
    node = work.node
    return NodeRow(node.name, node.kind, work.task.signature, forms, tuple(rows))
