"""Converts operations that gain from 16-bit floats and tolerate them; the I/O stays float32.

Convolutions and matrix products become half precision wherever they are. Cheap operators follow if
one of their inputs is half already, so that no tensor is widened for them; everything else stays
float32, in particular:

- Exp, Pow, Log, Sqrt, Reciprocal, sums and norms: their range is wider than that of their operands
- values that may leave the range of float16, or underflow in it, according to `ranges`
- squares, quotients, positions, inputs of functions with poles: see `half_forms`
- Softmax and the normalizations follow, because every backend computes them in float32 inside
- losses, and the statistics of a BatchNormalization that was not folded: they are sums
- RNN, CumSum, CumProd: their rounding errors accumulate from step to step
- GRU and LSTM with states of another run; those that begin anew keep them in float32 inside
- Range, AffineGrid, RoiAlign, the grid of GridSample and the scales of Resize: positions need more
  than 11 bits
- comparisons, ArgMax, TopK, NonMaxSuppression (ties); what ONNX lacks: Shrink of bfloat16
- readers of a constant that half precision cannot represent, such as the -3e38 of a mask
- first layers that read few columns of an input (`half_first`), but their results are half
- all steps of an unrolled recurrence, if some of them are (`half_steps`)
- the nodes in `Options.keep_float32`

A convolution by computed filters that nothing bounds is half precision after all if it only reads
and gives such numbers, as its sums are float32.

All this is decided before anything runs, by proofs, forms and likelihood: inputs beyond 65504, or
extreme weights, may still overflow. `Model` checks the results of its runs for that.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from ...base.arguments import unfit
from ...errors import UsageError, did_you_mean
from ...ir.constraints import takes
from ...ir.dtypes import DType, bfloat16, float16, float32
from ...ir.graph import Graph, Node, Value
from ...ir.halves import begin_rounding, rounded
from ...ir.infer import infer_node
from ...ir.op import Op
from ...ir.types import Array, TensorType
from ...ops import (
    attention,
    conv,
    cuts,
    elementwise,
    experts,
    gather,
    movement,
    norm,
    pool,
    recurrent,
    reduce,
    resize,
    shape,
)
from ..driver import Context
from ..editing import Builder, drop, unviewed
from .half_first import first_layer
from .half_forms import (
    HalfLimits,
    chooses_alike,
    fits,
    fragile_nodes,
    holds_computed,
    holds_mask,
    is_open_power,
    is_open_product,
    is_open_quotient,
    is_open_recurrence,
    is_outweighed,
    is_slight,
    is_spectrum,
    repeated_rows,
    vanishes_in_sum,
)
from .half_operators import FOLLOWERS, LEADERS, has_sinks
from .half_results import COMPUTING, cast_to, is_read, module_of, widen_early
from .half_steps import wide_steps
from .range_rules import ranges_of
from .ranges import Ranges, large_constants, measured_in

_HALVES: dict[str, DType] = {"float16": float16, "bfloat16": bfloat16}

#: Followers that write to a tensor: they follow what they write, unless that is a part of a tensor
#: which stays float32. Their sums are float32 in any case.
_WRITERS = (gather.ScatterElements, gather.ScatterND)
#: Minimum number of parts of a tensor that is cast before they are cut.
_PARTS = 4
#: Maximum bytes of a table that is cast, which takes longer than the rows of many runs.
_TABLE = 2**28
#: Modules of operators of which parts that are written to may be read as they are stored.
_STORING = COMPUTING | {each.__name__ for each in (reduce, movement, gather)}
#: Operators of which only this many leading inputs become half.
_ONE = (norm.BatchNormalization, resize.Resize, resize.GridSample)
_FIRST: dict[type[Op], int] = dict.fromkeys(_ONE, 1)
#: Operators all of whose results may be half.
_SEVERAL = (movement.Split, pool.MaxPool, recurrent.GRU, recurrent.LSTM)
#: Inputs that stay float32, such as masks with -3e38, or logits that choose experts.
_KEPT: dict[type[Op], int] = {attention.Attention: 3, experts.MoE: 1, experts.QMoE: 1}


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace nodes by half-precision ones, with Casts at the boundary to float32.

    Every rewrite leaves a graph with the same inputs and outputs: the Cast after a node stays for
    those of its readers that do not follow, and is dead if all of them do.
    """
    half = _HALVES.get(context.options.precision)
    if half is None:
        return
    kept = set(context.options.keep_float32)
    measured = measured_in(graph)
    with _rounding(graph, half) as weights:  # threads round them while nodes are rewritten
        narrow = _Narrow(graph, half, ranges_of(graph, measured), weights)
        for node in list(graph.nodes):
            if node not in graph or kept.intersection((node.name, *node.origin)):
                continue
            if narrow.suits(node):
                end = narrow.end_of_first(node)
                narrow.rewrite(end or node, reads_wide=end is not None)
                how = "stores" if end is not None else "computes in"
                yield f"{node.kind} '{node.name}' {how} {half.name}"
        for node in list(graph.nodes):
            if kept.isdisjoint((node.name, *node.origin)) and narrow.is_rounded(node):
                narrow.rewrite(node)
                yield f"{node.kind} '{node.name}' reads and stores {half.name}"
        yield from widen_early(graph, narrow.widened(), half)


def check_kept(graph: Graph, names: Iterable[str]) -> None:
    """Raise UsageError for a name in `Options.keep_float32` that no node of the file has."""
    known = {name: None for node in graph.walk() for name in (node.name, *node.origin)}
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise unfit(UsageError, "keep_float32", f"the model has no node '{name}'{hint}")


class _Narrow:
    """Half-precision counterparts of a graph's float32 values.

    Args:
        graph: the graph.
        half: the type.
        ranges: of its values.
        weights: those that are rounded already, or being rounded.
    """

    def __init__(
        self, graph: Graph, half: DType, ranges: Ranges, weights: dict[Value, Array]
    ) -> None:
        self._graph = graph
        self._half = half
        self._known: dict[Value, Value] = {}
        self._limits = HalfLimits(half)
        self._ranges = ranges
        self._fragile = fragile_nodes(graph, ranges)
        self._rounded = weights
        self._masks: dict[tuple[Value, bool], Value] = {}
        self._fragile |= wide_steps(graph, lambda node: self._bears(node, self._wide_inputs(node)))

    def suits(self, node: Node) -> bool:
        """Whether a node should compute in half precision."""
        kind = type(node.op)
        wide = self._wide_inputs(node)
        computed = [value for value in wide if not value.is_constant]
        if kind in FOLLOWERS:
            computed = [value for value in computed if value in self._known]
            if isinstance(node.op, _WRITERS):
                old, _, updates = node.operands
                follows = old in computed or (old.is_constant and updates in computed)
                computed = computed if follows else []
        elif kind not in LEADERS:
            return False
        types = [value.type for value in node.outputs]
        return (
            bool(computed)
            and all(takes(kind, self._half, i) for i, v in enumerate(node.inputs) if v in wide)
            and isinstance(types[0], TensorType)
            and types[0].dtype == float32
            and (len(types) == 1 or kind in _SEVERAL or has_sinks(node))
            and self._bears(node, wide)
        )

    def end_of_first(self, node: Node) -> Node | None:
        """Return the last node of a first layer that computes in float32; None of another node."""
        layer = first_layer(self._graph, node)
        bears = all(self._bears(added, self._wide_inputs(added)) for added in layer[1:])
        return (layer[-1] if bears else node) if layer else None

    def is_rounded(self, node: Node) -> bool:
        """Whether a convolution that stays float32 only reads and gives numbers of 16 bits.

        Its sums are float32 in any case.
        """
        if not isinstance(node.op, conv.ConvOp):
            return False
        roundings, wide = self._roundings(node.output), self._wide_inputs(node)
        computed = [value for value in wide if not value.is_constant]
        readers = {each for each in node.output.consumers if is_read(self._graph, each)}
        return (
            bool(roundings and computed)
            and all(value in self._known for value in computed)
            and not self._graph.is_output(node.output)
            and readers <= roundings
            and self._bears(node, wide, is_rounded=True)
        )

    def _roundings(self, value: Value) -> set[Node]:
        """Return the Casts of a value to half precision."""
        return {
            node
            for node in value.consumers
            if isinstance(node.op, elementwise.Cast) and node.output.tensor.dtype == self._half
        }

    def _bears(self, node: Node, wide: list[Value], *, is_rounded: bool = False) -> bool:
        """Whether neither the node nor its inputs need the range of float32."""
        ranges, limits = self._ranges, self._limits
        if node in self._fragile or is_open_power(node, ranges) or is_open_quotient(node, ranges):
            return False
        is_open = not is_rounded and is_open_product(node, ranges, limits)
        if is_open or is_open_recurrence(node, ranges) or is_spectrum(node):
            return False
        touched = [*wide, *node.outputs[: 1 if has_sinks(node) else None]]
        if not all(limits.holds(ranges[value]) for value in touched if value.data is None):
            return False
        vanishing = any(
            limits.vanishes(ranges[v]) and not is_outweighed(v, node, ranges)
            for v in touched
            if v.data is None
        )
        may_vanish = vanishes_in_sum(node, ranges)
        divisor = node.inputs[1] if isinstance(node.op, elementwise.Div) else None
        return (may_vanish or not vanishing) and all(
            fits(
                value.data,
                self._half,
                ranges[value],
                divides=value is divisor,
                may_vanish=may_vanish or is_slight(value, node, ranges),
            )
            for value in wide
            if value.data is not None
        )

    def _wide_inputs(self, node: Node) -> list[Value]:
        first = node.inputs[: _FIRST.get(type(node.op), len(node.inputs))]
        return [
            value
            for place, value in enumerate(first)
            if value is not None
            and place != _KEPT.get(type(node.op))
            and isinstance(value.type, TensorType)
            and value.type.dtype == float32
        ]

    def rewrite(self, node: Node, *, reads_wide: bool = False) -> None:
        """Replace a node by a half-precision one and a Cast to float32.

        Args:
            node: the node.
            reads_wide: whether it computes in float32, and only its result is cast.
        """
        graph, wide = self._graph, set([] if reads_wide else self._wide_inputs(node))
        inputs = [self._narrowed(v, node) if v in wide else v for v in node.inputs]
        place = _KEPT.get(type(node.op), len(inputs))
        if place < len(inputs):
            inputs[place] = self._as_computed(inputs[place])
            if isinstance(node.op, attention.Attention):
                inputs[place] = self._mask(inputs[place], node, node.op)
        new = graph.insert(
            node.op, inputs, len(node.outputs), name=node.name, before=node, origin=(node,)
        )
        results: list[Value] = []
        for value, old in zip(new.outputs, node.outputs, strict=True):
            value.type = old.type
            if isinstance(old.type, TensorType) and old.type.dtype == float32:
                if reads_wide:
                    value = cast_to(self._graph, value, self._half, node)
                value.type = TensorType(self._half, old.type.shape)
                widened = cast_to(self._graph, value, float32, node)
                self._known[widened] = value
                self._ranges.copy(old, widened)
                results.append(widened)
            else:
                results.append(value)
        infer_node(new)
        graph.replace(node, results)
        graph.rename(new, node.name)
        for value in results:
            for reader in graph.in_order(self._roundings(value)):
                graph.redirect(reader.output, self._known[value])
                drop(graph, reader)

    def widened(self) -> dict[Value, Value]:
        """Return what is computed in half precision, by what it is cast to."""
        return {v: half for v, half in self._known.items() if self._as_computed(v) is not v}

    def _as_computed(self, value: Value | None) -> Value | None:
        """Return what a node computed in half precision before its result was widened."""
        node = None if value is None else value.producer
        half = None if value is None else self._known.get(value)
        is_widened = node is not None and isinstance(node.op, elementwise.Cast) and half is not None
        return half if is_widened and node is not None and node.inputs[0] is half else value

    def _mask(self, value: Value | None, reader: Node, op: attention.Attention) -> Value | None:
        """Return a mask in float16 if that holds it: its elements, or all that it may have."""
        if value is None or value.tensor.dtype != float32:
            return value
        window = max(op.left_window_size, op.right_window_size)
        whole = not op.is_causal and window < 0 and not any(reader.inputs[6:])
        if value.data is None:
            rows = repeated_rows(value)
            held = rows is not None and holds_mask(rows, whole=whole)
            held = self._half == float16 and (held or holds_computed(self._ranges[value]))
            return self._narrowed(value, reader) if held else value
        if (value, whole) not in self._masks:
            held = holds_mask(value.data, whole=whole)
            half = value.data.astype(np.float16) if held else None
            self._masks[value, whole] = (
                value if half is None else self._graph.constant(half, f"{value.name}.half")
            )
        return self._masks[value, whole]

    def _narrowed(self, value: Value | None, reader: Node, *, alone: bool = True) -> Value | None:
        """Return a float32 value in half precision.

        Args:
            value: the value.
            reader: the node that reads it, maybe through nodes that move elements.
            alone: whether it alone reads what is between it and the value.
        """
        if value is None or value in self._known:
            return None if value is None else self._known[value]
        node = value.producer
        if value.data is not None:
            data = self._rounded.get(value)
            data = rounded(value.data, self._half) if data is None else data
            narrow = self._graph.constant(data, f"{value.name}.half")
        elif node is not None and self._passes(node, value, reader, alone=alone):
            # In front of a view, a Cast is next to the node that computes its elements.
            moved = _moved_inputs(node)
            alone &= self._graph.sole_consumer(value) is not None
            inputs = [
                self._narrowed(v, reader, alone=alone) if v in moved else v for v in node.inputs
            ]
            add = Builder(self._graph, reader, f"{value.name}.{self._half.name}", (node,))
            narrow = add(node.op, *inputs)
        else:
            narrow = cast_to(self._graph, value, self._half, reader)
        self._known[value] = narrow
        return narrow

    def _passes(self, node: Node, value: Value, reader: Node, *, alone: bool) -> bool:
        """Whether a Cast of a node's result goes in front of it.

        It does in front of a Transpose that only layers read, or one node, if it is then next to a
        node that computes: this one stores 16 bits, and the Transpose moves them. What is only
        moved is cast as it is moved. A tensor of which only parts are read (the steps of a
        recurrence) is cast once, and a table from which rows are gathered before it is stored, like
        the weights of a layer. What a Concat joins for layers alone is cast as it is computed,
        apart from one part at most. A constant is cast before it is repeated.
        """
        if isinstance(node.op, shape.RESHAPES):
            return True
        if isinstance(node.op, movement.Expand | movement.Tile):
            return node.operands[0].data is not None
        leads = all(each is reader or type(each.op) in LEADERS for each in value.consumers)
        if isinstance(node.op, gather.OneHot):
            return chooses_alike(node, self._half)
        if isinstance(node.op, movement.Concat):
            return leads and sum(not self._is_stored(v) for v in set(node.operands)) <= 1
        if _is_cut(node):
            whole = unviewed(node.operands[0])
            readers = [c for v in whole.consumers for c in _behind_view(v)]
            cut = all(_is_cut(each) for each in readers)
            if whole in self._known or (cut and len(readers) >= _PARTS):
                return True
        if isinstance(node.op, gather.Gather | gather.GatherND):
            data = node.operands[0].data
            fits = data is not None and (data.nbytes <= _TABLE or type(reader.op) in LEADERS)
            return fits and len(value.consumers) == 1
        only = alone and (leads or self._graph.sole_consumer(value) is not None)
        if not isinstance(node.op, movement.Transpose) or not only or self._graph.is_output(value):
            return False
        source = unviewed(node.operands[0], (*shape.RESHAPES, movement.Transpose)).producer
        return source is not None and module_of(source) in COMPUTING

    def _is_stored(self, part: Value) -> bool:
        """Whether a part of a joined tensor is there in half precision, or is stored in it."""
        while part not in self._known and part.data is None:
            node = part.producer
            if node is None or len(part.consumers) > 1 or self._graph.is_output(part):
                return False
            if not isinstance(node.op, shape.RESHAPES):
                return module_of(node) in _STORING and not isinstance(node.op, movement.Concat)
            part = node.operands[0]
        return True


def _moved_inputs(node: Node) -> set[Value]:
    """Return the inputs whose elements a node moves."""
    if isinstance(node.op, movement.Concat):
        return set(node.operands)
    return {node.operands[2 if isinstance(node.op, gather.OneHot) else 0]}


@contextmanager
def _rounding(graph: Graph, half: DType) -> Generator[dict[Value, Array]]:
    """Round the large weights of layers; they have their elements when the block has ended.

    Those of a layer that stays float32 after all are dropped.
    """
    layers = (node for node in graph.nodes if type(node.op) in LEADERS)
    wide = {v: data for v, data in large_constants(layers).items() if data.dtype == float32}
    found, end = begin_rounding(wide.values(), half)
    try:
        yield dict(zip(wide, found, strict=True))
    finally:
        end()


def _is_cut(node: Node) -> bool:
    """Whether a node is a Slice, or a Gather of one place."""
    if isinstance(node.op, gather.Gather):
        return cuts.part_of(node.output) is not None
    return isinstance(node.op, movement.Slice)


def _behind_view(node: Node) -> Iterable[Node]:
    """Return the readers of a view, or another node itself."""
    return node.output.consumers if isinstance(node.op, shape.RESHAPES) else [node]
