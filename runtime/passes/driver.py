"""The driver of passes: runs, counts and stops them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import import_module
from typing import Protocol

from ..base.guard import check_time
from ..base.record import record
from ..base.warned import warn
from ..errors import TercetWarning
from ..ir.fresh_names import naming
from ..ir.graph import Graph
from ..ir.op import Op, body_names
from ..ir.symbols import sizes_named
from ..ir.types import Array, TensorType
from ..ir.verify import verify
from .moved_places import Evaluate, MovedPlaces

# Of one pass: the most that were seen are one for each two nodes.
_REWRITES_PER_NODE = 10
_FEWEST_REWRITES = 1000

#: Precisions that are half.
_NARROW = ("float16", "bfloat16")

#: Environment variable: verify the graph after each pass that changed it, and of the passes that
#: have nothing to rewrite run every Nth, where it is a number N, to see that they rewrite nothing.
VERIFY = "TERCET_VERIFY_PASSES"

#: Why a layer of quantized tensors is no faster on integers than as one of floats, empty if it is:
#: the operator on integers, and the types of its two operands.
IntegerChoice = Callable[[Op, TensorType, TensorType], str]


class PassOptions(Protocol):
    """The options (`runtime.options.Options`) that affect passes."""

    @property
    def precision(self) -> str: ...
    @property
    def keep_float32(self) -> tuple[str, ...]: ...
    @property
    def stop_at(self) -> int | None: ...
    @property
    def skip(self) -> tuple[str, ...]: ...
    @property
    def fold_bytes(self) -> int: ...
    @property
    def fold_total(self) -> int: ...
    @property
    def keep_quantized(self) -> bool: ...
    @property
    def integers(self) -> bool | IntegerChoice | None: ...
    @property
    def finite(self) -> bool: ...
    @property
    def max_bytes(self) -> int | None: ...


@dataclass(slots=True)
class Context:
    """What a pass may need besides the graph.

    Attributes:
        options: the user's choices.
        evaluate: evaluates one operator on arrays.
        spent: bytes of constants created by folding so far.
        made: bytes of constants created so far, including those dropped again.
        refused: rewrites that the current pass refused, with reasons.
        places: where nodes move elements.
    """

    options: PassOptions
    evaluate: Evaluate
    spent: int = 0
    made: int = 0
    refused: list[RewriteRefusal] = field(default_factory=list["RewriteRefusal"])
    places: MovedPlaces = field(init=False)

    def __post_init__(self) -> None:
        self.places = MovedPlaces(self.evaluate)


@record
class InModule:
    """A function of a module of this package, which is imported when it is first called.

    The passes that a network has nothing for take a tenth of the time in which it is planned first.

    Attributes:
        module: the module.
        name: the function.
    """

    module: str
    name: str = "run"

    def __call__(self, graph: Graph, context: Context) -> Iterator[str]:
        """Call the function."""
        return _function(self.module, self.name)(graph, context)


@cache
def _function(module: str, name: str) -> Callable[[Graph, Context], Iterator[str]]:
    return getattr(import_module(f".{module}", __package__), name)


@record
class Pass:
    """One kind of rewrite.

    Attributes:
        name: a verb.
        run: makes one rewrite in place, then yields one sentence about it, repeatedly.
        reason: the reason for its position.
        at: groups of names of operators; a graph without any of one of the groups has nothing to
            rewrite. Empty if that cannot be told by operators.
        narrow: whether only half precision has something to rewrite.
    """

    name: str
    run: Callable[[Graph, Context], Iterator[str]]
    reason: str
    at: tuple[tuple[str, ...], ...] = ()
    narrow: bool = False

    def has_nothing(self, kinds: Set[str], options: PassOptions) -> bool:
        """Whether a graph with these operators has nothing to rewrite."""
        if self.narrow and options.precision not in _NARROW:
            return True
        return any(map(kinds.isdisjoint, self.at))


@record
class Rewrite:
    """One change of a graph.

    Attributes:
        number: its number over all passes, from 1.
        name: the name of the pass.
        text: what was done, with node names.
    """

    number: int
    name: str
    text: str


class Reason(StrEnum):
    """Why nodes that match a pattern are not rewritten."""

    SHARED = "shared"  # an intermediate value has other readers
    RESULT = "result"  # an intermediate value is a graph output
    SHAPE = "shape"  # sizes do not fit, or are unknown
    TYPE = "type"  # the operator does not exist in this dtype
    NUMBERS = "numbers"  # constants would overflow, underflow or lose digits


@record
class RewriteRefusal:
    """A rewrite that was refused.

    Attributes:
        reason: the kind of reason.
        nodes: names of the nodes, in the graph's order.
        text: a sentence with these nodes and the reason.
    """

    reason: Reason
    nodes: tuple[str, ...]
    text: str


@record
class RefusedRewrite:
    """A refused rewrite with its pass.

    Attributes:
        name: the name of the pass.
        text: the nodes, and why they are not rewritten.
        reason: the kind of reason.
        nodes: names of the nodes.
    """

    name: str
    text: str
    reason: Reason = Reason.NUMBERS
    nodes: tuple[str, ...] = ()


@dataclass(slots=True)
class Rewrites:
    """Every rewrite of a graph in order, those refused, and passes that found no end."""

    log: list[Rewrite] = field(default_factory=list[Rewrite])
    refused: list[RefusedRewrite] = field(default_factory=list["RefusedRewrite"])
    endless: list[str] = field(default_factory=list[str])

    def __len__(self) -> int:
        return len(self.log)

    def __iter__(self) -> Iterator[Rewrite]:
        return iter(self.log)

    def copy(self) -> Rewrites:
        """Return an independent copy of the log, to be continued."""
        return Rewrites(list(self.log), list(self.refused), list(self.endless))

    @property
    def counts(self) -> dict[str, int]:
        """Number of rewrites by pass."""
        return dict(Counter(rewrite.name for rewrite in self.log))


def optimise(
    graph: Graph,
    passes: Sequence[Pass],
    options: PassOptions,
    evaluate: Evaluate,
    rewrites: Rewrites,
) -> None:
    """Run passes on a graph in place; meanwhile, unknown sizes have names (`ir.fresh_names`).

    Args:
        graph: with inferred types (`ir.infer.infer`).
        passes: `SYMBOLIC_PASSES`, `STATIC_PASSES`, or some of these.
        options: budgets, and `stop_at`, which counts all rewrites in `rewrites` so far.
        evaluate: runs one operator on arrays.
        rewrites: gets one entry per rewrite.
    """

    def run_alone(op: Op, given: Sequence[Array | None], count: int) -> Sequence[Array] | None:
        with naming(None):
            return evaluate(op, given, count)

    with sizes_named(graph):
        run_passes(graph, passes, Context(options, run_alone), rewrites)


def run_passes(graph: Graph, passes: Sequence[Pass], context: Context, rewrites: Rewrites) -> None:
    """Run `passes` in order until `Options.stop_at` rewrites have been made.

    Raises:
        ValueError: a pass left a graph that is inconsistent, if ``$TERCET_VERIFY_PASSES`` is set.
    """
    limit, verified = context.options.stop_at, os.environ.get(VERIFY, "")
    every = int(verified) if verified.isdecimal() else int(bool(verified))
    kinds = _kinds(graph)
    for number, each in enumerate(passes):
        if limit is not None and len(rewrites) >= limit:
            return
        if each.name in context.options.skip:
            continue
        if each.has_nothing(kinds, context.options):
            if every and (number + len(graph.nodes)) % every == 0:
                _verify_nothing(each, graph, context)
            continue
        check_time()
        before = len(rewrites)
        for text in _ending(each, graph, context, rewrites):
            check_time()
            rewrites.log.append(Rewrite(len(rewrites) + 1, each.name, text))
            if limit is not None and len(rewrites) >= limit:
                break
        if len(rewrites) > before:
            kinds = _kinds(graph)
            if every:
                _verify(graph, each)
        if context.refused:
            known = set(rewrites.refused)
            found = (RefusedRewrite(each.name, r.text, r.reason, r.nodes) for r in context.refused)
            rewrites.refused.extend(one for one in found if one not in known)
            context.refused.clear()


def _kinds(graph: Graph) -> Set[str]:
    """Return the names of a graph's operators, and of those of its bodies."""
    kinds = {type(node.op) for node in graph.nodes}
    if any(map(body_names, kinds)):
        kinds = {type(node.op) for node in graph.walk()}
    return {kind.__name__ for kind in kinds}


def _verify_nothing(each: Pass, graph: Graph, context: Context) -> None:
    for text in each.run(graph, context):
        raise ValueError(f"pass '{each.name}' is not for such a graph, and yet: {text}")


def _verify(graph: Graph, changed_by: Pass) -> None:
    try:
        for each in graph.graphs():
            verify(each)
    except ValueError as error:
        raise ValueError(f"pass '{changed_by.name}' left a broken graph: {error}") from error


def _ending(each: Pass, graph: Graph, context: Context, rewrites: Rewrites) -> Iterator[str]:
    """Run one pass, and stop one that undoes its own rewrites: the graph is right after each."""
    left = _FEWEST_REWRITES + _REWRITES_PER_NODE * len(graph.nodes)
    bodies_counted = False
    for text in each.run(graph, context):
        yield text
        left -= 1
        if not left and not bodies_counted:
            bodies_counted = True
            left = _REWRITES_PER_NODE * sum(1 for _ in graph.walk())
        if not left:
            rewrites.endless.append(each.name)
            warn(
                f"pass '{each.name}' found no end and was stopped; its last rewrite: {text}. "
                f"Results are right, but may be slower. Without this pass: skip=('{each.name}',). "
                "Please report this, with the file",
                TercetWarning,
            )
            return
