"""The same model in float64: as it is, and every result moved as rounding would move it, or more.

What a runtime rounds is moved here by chance: every tensor that a node computes by a random share
of its unit in the last place, and so is what goes into a sum, the further the more terms it has.
TF32 is the format of factors: what is multiplied is read in it, all else is float32. What is exact
stays: whole numbers and all that the dtype can hold as they are, so counts, sizes, indices and
masks do not flip. A quotient, a mean or a function stays only where a decision hinges on it, as
libraries may give a neighbour of what is exact. Nor does rounding touch what only moves, selects or
compares numbers.

*Fair* runs move numbers about as far as a runtime does, *rough* ones far further: what does not
move even there is not rounding. All runs share one plan: noise comes from operators, which read
how much and which from the run, as do constants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any
from weakref import finalize

import numpy as np

from ...runtime.ir.custom import CustomOperator, declare
from ...runtime.ir.dtypes import DType, float32, float64, string
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.op import Op
from ...runtime.ir.types import Array, HostValue, TensorType
from ...runtime.ops.norm import GroupNormalization, InstanceNormalization
from ...runtime.ops.resize import GridSample
from .definitions import Definitions
from .float64_reference import Oracle
from .noise import (
    EXACT,
    NO_AMOUNT,
    Amount,
    Noise,
    by_steps,
    exact,
    moved,
    whole_below,
    with_shifts,
    with_weights,
)
from .operators import (
    BASIC,
    BITS,
    BYTES,
    COMPARING,
    COMPOSED,
    GATED,
    GREATEST,
    NAMES,
    NEVER_NEGATIVE,
    PRODUCTS,
    QUANTIZING,
    RECURRENT,
    SHIFTED,
    SMALLEST,
    becomes_integer,
    before_decisions,
    byte_operands,
    divides_exactly,
    greatest_position,
    interpolates,
    is_cubic,
    is_faithful,
    is_size,
    is_unspecified,
    least_magnitude,
    leaves_rows_open,
    noise_growth,
    plain_kind,
    reaches_rounding,
    rounds,
    rounds_terms,
    sums_by_result,
    transformed_axes,
)
from .overflow import with_partial_sums
from .unspecified import Opened, with_open_rows, with_other_integers, with_others

#: How far from a pixel others may be that libraries add to it and subtract again: Winograd's
#: transforms of tiles of six by six.
_TILE = 3
#: Formats in which runtimes may round every step of an operator that ONNX defines as a function.
_NARROW = {"float16", "bfloat16"}
#: Operators that run so in any format: onnxruntime's CPU provider computes the variance of a group
#: as the mean of squares less the square of the mean, and kernel values are rounded one by one.
_RUN_BY_STEPS = {"GroupNormalization", "SVMClassifier", "SVMRegressor"}
#: A magnitude that every number but zero has.
_ANY = 1e-300


class Shaken:
    """A graph in float64 with noise; see `Oracle`.

    Args:
        graph: an imported graph, its shapes known or not; stays as it is.
        precision: compute precision of float32 tensors.
        in_bytes: whether operands are rounded to eight bits where the file allows it.
    """

    def __init__(self, graph: Graph, precision: str, *, in_bytes: bool = False) -> None:
        self._noise = Noise()
        shake = _Shake(self._noise, precision, in_bytes=in_bytes)
        self._oracle = Oracle(shake.applied(graph), change_input=shake.input)
        finalize(self, self._oracle.close).atexit = False

    def run(
        self,
        inputs: Mapping[str, HostValue],
        kind: str = EXACT,
        seed: int = 0,
        times: float = 1.0,
    ) -> dict[str, HostValue]:
        """Return the results by name.

        Args:
            inputs: a value for every input.
            kind: `EXACT`, `OVERFLOWING`, `STORED`, `OPEN`, `FAIR` or `ROUGH`.
            seed: another one gives other noise.
            times: how much further numbers move than they do by default.
        """
        self._noise.start(kind, seed, times)
        return self._oracle.run(dict(inputs))


@dataclass(frozen=True, slots=True)
class _Constant:
    """A constant, how it moves, whether a run may read it more than once, or it may be anything."""

    data: Array
    noise: dict[str, Any]
    is_repeated: bool = False
    is_unspecified: bool = False


class _Shake:
    """Puts noise into a graph.

    Args:
        noise: where it comes from.
        precision: compute precision of float32 tensors.
        wide: the format of what is float64 in the graph.
        in_bytes: see `Shaken`.
    """

    def __init__(
        self, noise: Noise, precision: str, wide: str = "float64", *, in_bytes: bool = False
    ) -> None:
        self._noise, self._precision, self._in_bytes = noise, precision, in_bytes
        self._stored = "float32" if precision == "tf32" else precision
        self._formats = {"float32": self._stored, "float64": wide}
        function = CustomOperator(partial(moved, noise), _same_type)
        self._op: Any = declare("tercet.noise", "Noise", function)
        function = CustomOperator(self._constant, self._constant_type)
        self._constant_op: Any = declare("tercet.noise", "Constant", function)
        function = CustomOperator(partial(by_steps, noise), lambda x, steps, **_: x)
        self._steps_op: Any = declare("tercet.noise", "Steps", function)
        function = CustomOperator(partial(with_shifts, noise), lambda y, x, scale, **_: y)
        self._shifts_op: Any = declare("tercet.noise", "Shifts", function)
        function = CustomOperator(partial(with_weights, noise), lambda y, x, grid, **_: y)
        self._weights_op: Any = declare("tercet.noise", "Weights", function)
        function = CustomOperator(self._sum, lambda x, *inputs, index: x)
        self._sum_op: Any = declare("tercet.noise", "Sum", function)
        function = CustomOperator(self._open, lambda cache, new, places: cache)
        self._open_op: Any = declare("tercet.noise", "Open", function)
        function = CustomOperator(self._open_where, lambda x, kept: x)
        self._open_where_op: Any = declare("tercet.noise", "OpenWhere", function)
        function = CustomOperator(self._open_cast, lambda y, x: y)
        self._open_cast_op: Any = declare("tercet.noise", "OpenCast", function)
        self._sums: list[tuple[Op, int]] = []
        self._constants: list[_Constant] = []
        self._bytes: Mapping[Node, Mapping[int, int]] = {}
        self._definitions: dict[str, Definitions] = {}

    def _name(self, value: Value | None) -> str:
        """Return the format of a tensor, empty for what is not a float."""
        if value is None or not isinstance(value.type, TensorType):
            return ""
        name = NAMES.get(value.type.dtype, "")
        return self._formats.get(name, name)

    def _narrows(self, node: Node, value: Value | None = None) -> bool:
        """Whether a node multiplies in a narrower format; if a value is given, that value."""
        factors = node.inputs[:2] if plain_kind(node) in PRODUCTS else node.inputs
        multiplies = value is None or value in factors
        return self._precision != self._stored and node.op.dense and multiplies

    def input(self, data: Array) -> Array:
        """Move inputs that runners narrow; all others are what both of them read."""
        wide = data.astype(float64)
        if data.dtype != float32 or BITS[self._stored] == BITS["float32"]:
            return wide
        return moved(self._noise, wide, **_of_data(data, self._stored))

    def _constant(self, *, index: int) -> Array:
        """Return a constant of this run."""
        constant, known = self._constants[index], self._noise.constants
        if index in known:
            return known[index]
        data = constant.data.astype(float64)
        if constant.is_unspecified:
            return np.full_like(data, np.nan) if self._noise.opens else data
        found = moved(self._noise, data, **constant.noise)
        if constant.is_repeated:
            known[index] = found
        return found

    def _constant_type(self, *, index: int) -> TensorType:
        return TensorType(float64, self._constants[index].data.shape)

    def _sum(self, x: Array, *inputs: Array | None, index: int) -> Array:
        """Return a sum; in a run that overflows, infinities where parts of it may be so."""
        if not self._noise.overflows:
            return x
        return with_partial_sums(x, inputs, *self._sums[index])

    def _open(self, cache: Array, new: Array, places: Array) -> Array:
        """Return a cache; in a run that opens what is unspecified, with others in its open rows."""
        return with_open_rows(cache, new, places) if self._noise.opens else cache

    def applied(self, graph: Graph) -> Graph:
        """Return a copy in which noise goes into every sum and comes out of all that rounds."""
        copy = graph.clone()
        for node in copy.walk():
            if isinstance(node.op, Opened):
                copy.set_op(node, self._open_where_op())
        hinge = before_decisions(copy)
        if self._in_bytes:
            self._bytes = {node: byte_operands(node) for node in copy.walk()}
        for each in copy.graphs():
            for node in list(each.nodes):
                if rounds(node):
                    stays = (
                        each is not copy or is_faithful(node) or hinge.intersection(node.outputs)
                    )
                    self._shake_steps(each, node)
                    self._shake_shifts(each, node)
                    self._shake_weights(each, node)
                    self._shake_inputs(each, node)
                    self._shake_sum(each, node)
                    self._shake_outputs(each, node, stays=bool(stays))
        for each in copy.graphs():
            for node in list(filter(becomes_integer, each.nodes)):
                self._follow(each, node, self._open_cast_op(), node.inputs[:1])
            for value in each.constants:
                self._shake_constant(each, value, is_repeated=each is not copy)
        self._open_results(copy)
        return copy

    def _open_where(self, x: Array, kept: Array) -> Array:
        """Return a tensor; in a run that opens what is unspecified, with others where not kept."""
        return with_others(x, kept) if self._noise.opens else x

    def _open_cast(self, y: Array, x: Array) -> Array:
        """Return integers; in a run that opens what is unspecified, others where none is near."""
        return with_other_integers(y, x) if self._noise.opens else y

    def _open_results(self, graph: Graph) -> None:
        """Open rows of results; attention masks them."""
        results = dict(graph.outputs)
        for name, value in results.items():
            node = value.producer
            if node is not None and leaves_rows_open(node):
                opened = graph.insert(self._open_op(), [value, *node.inputs[1:3]])
                opened.output.type = value.type
                results[name] = opened.output
        graph.set_outputs(results)

    def _shake_steps(self, graph: Graph, node: Node) -> None:
        """Let noisy runs compute a node as ONNX defines it, step by step."""
        names = {self._name(value) for value in (*node.distinct_reads, *node.outputs)}
        formats = _NARROW | {"float32"} if plain_kind(node) in _RUN_BY_STEPS else _NARROW
        for name in names & formats:
            if name not in self._definitions:
                self._definitions[name] = Definitions(partial(self._shake_definition, name))
            steps = self._definitions[name].of(node)
            if steps is None:
                continue
            found = graph.splice(node, steps, [v for v in node.inputs if v is not None])
            after = graph.nodes.index(node) + 1
            follower = graph.nodes[after] if after < len(graph.nodes) else None
            for value, made in zip(node.outputs, found, strict=True):
                op = self._steps_op(narrow=name in _NARROW)
                chosen = graph.insert(op, [made, made], before=follower)
                chosen.output.type = value.type
                graph.redirect(value, chosen.output)
                graph.set_inputs(chosen, [value, made])

    def _shake_definition(self, name: str, graph: Graph, dtype: DType) -> Graph:
        """Put noise of a format into the definition of an operator that reads this dtype."""
        is_wide = dtype == float64
        inner = _Shake(self._noise, "float32" if is_wide else name, name if is_wide else "float64")
        return inner.applied(graph)

    def _shake_constant(self, graph: Graph, value: Value, *, is_repeated: bool) -> None:
        """Move a constant that passes may fold into others, or that a narrower format rounds.

        Single numbers are not folded, and limits are only compared with.
        """
        data, name = value.data, self._name(value)
        if data is not None and is_unspecified(value):
            self._replace_constant(graph, value, _Constant(data, {}, is_unspecified=True))
            return
        if data is None or name in ("", "float64") or graph.is_output(value):
            return
        coarse = BITS[self._stored] < BITS["float32"] or data.dtype == float64
        if is_size(value) or not (coarse or reaches_rounding(value)):
            return
        if data.dtype == float32 and any(self._narrows(node, value) for node in value.consumers):
            name = self._precision
        noise = _of_data(data, name)
        if not noise or exact(data.astype(float64), noise["bits"], noise["below"]).all():
            return
        self._replace_constant(graph, value, _Constant(data, noise, is_repeated))

    def _replace_constant(self, graph: Graph, value: Value, constant: _Constant) -> None:
        first = graph.in_order(value.consumers)[0]
        node = graph.insert(self._constant_op(index=len(self._constants)), [], before=first)
        self._constants.append(constant)
        node.output.type = TensorType(constant.data.dtype, constant.data.shape)
        graph.redirect(value, node.output)
        graph.drop(value)

    def _shake_inputs(self, graph: Graph, node: Node) -> None:
        quantizing = node.kind in QUANTIZING
        growth = noise_growth(node)
        if node.kind in BASIC or plain_kind(node) in COMPARING:
            return
        inputs = list(node.inputs)
        own = _of_inputs(node)
        for i, value in enumerate(inputs):
            name = self._name(value)
            coarse = name not in ("float32", "float64") and not quantizing
            if value is None or not name or (i == 0 and divides_exactly(node)):
                continue
            blocks = self._bytes.get(node, {}).get(i, 0)
            unread = coarse and node.kind not in COMPOSED
            if not blocks and (unread or value.data is not None):
                continue
            is_weighted = i > 0 or isinstance(node.op, GridSample)
            amount, reach = Amount.of(name), 0 if is_weighted else greatest_position(node)
            amount *= 1.0 if coarse else growth  # accumulators are float32
            special = {} if quantizing or reach else own.get(i, {})
            is_moved = quantizing or reach or coarse or rounds_terms(node)
            chosen = {"floor": _ANY, **special} if is_moved else special
            if name == "float32" and self._narrows(node, value):
                narrow = self._precision
                amount, chosen = amount | Amount.of(narrow), {"bits": BITS[narrow], **chosen}
            if blocks:  # as many bits as bfloat16, of the greatest element; alike in every step
                steps = 2.0 if node.kind in RECURRENT else 1.0
                amount, chosen = (
                    amount | Amount.of("bfloat16") * steps,
                    {**chosen, "blocks": blocks},
                )
            op = self._op(amount=amount | Amount.of("float32") * reach, **chosen)
            noisy = graph.insert(op, [value], before=node).output
            noisy.type, inputs[i] = value.type, noisy
        graph.set_inputs(node, inputs)

    def _shake_sum(self, graph: Graph, node: Node) -> None:
        """Let a run that overflows see the terms of a sum in float32, or in fewer bits."""
        times, value = sums_by_result(node), node.output
        if not times or self._name(value) in ("", "float64"):
            return
        self._follow(graph, node, self._sum_op(index=len(self._sums)), node.inputs)
        self._sums.append((node.op, times))

    def _shake_shifts(self, graph: Graph, node: Node) -> None:
        """Move all elements of a channel that is normalized in the same way."""
        op = node.op
        if not isinstance(op, InstanceNormalization | GroupNormalization):
            return
        groups, amount = getattr(op, "num_groups", 0), Amount.of("float32")
        shifts = self._shifts_op(amount=amount, groups=groups, epsilon=op.epsilon)
        self._follow(graph, node, shifts, node.inputs[:2])

    def _shake_weights(self, graph: Graph, node: Node) -> None:
        """Move what is sampled between pixels by what rounds positions and weights."""
        reach = greatest_position(node)
        if isinstance(node.op, GridSample) and reach and self._name(node.output):
            amount, radius = Amount.of("float32") * reach, 2 if is_cubic(node) else 1
            weights = self._weights_op(op=node.op, amount=amount, radius=radius)
            self._follow(graph, node, weights, node.inputs[:2])

    def _follow(self, graph: Graph, node: Node, op: Op, inputs: Sequence[Value | None]) -> None:
        """Replace a node's result by that of an operator which reads it, and more."""
        value, after = node.output, graph.nodes.index(node) + 1
        follower = graph.nodes[after] if after < len(graph.nodes) else None
        made = graph.insert(op, [value, *inputs], before=follower)
        made.output.type = value.type
        graph.redirect(value, made.output)
        graph.set_inputs(made, [value, *inputs])

    def _shake_outputs(self, graph: Graph, node: Node, *, stays: bool) -> None:
        """Move results; those that fit into the format only where they do not have to stay."""
        after = graph.nodes.index(node) + 1
        follower = graph.nodes[after] if after < len(graph.nodes) else None
        growth = noise_growth(node)
        floor = least_magnitude(node)
        narrow = node.op.domain == "ai.onnx.ml" or node.kind == "DynamicQuantizeLinear"
        for value in node.outputs:
            is_known = value.type is not None  # of a custom operator's result only a run knows
            fixed_point = interpolates(node) and _is_of_bytes(value)
            name = "float32" if fixed_point else self._name(value)
            name = name if is_known else self._precision
            if name == "float32" and self._narrows(node) and plain_kind(node) not in PRODUCTS:
                name = self._precision  # of what it multiplies on its way
            if not name:
                continue
            coarse = name not in ("float32", "float64")
            amount = Amount.of(name) * (1.0 if coarse else growth)
            amount = Amount(rough=amount.rough) if fixed_point else amount
            bits = 0 if narrow else BITS[name]
            coordinates = Amount.of("float32") if interpolates(node) else NO_AMOUNT
            if not (coarse or stays):
                floor = max(floor, _ANY)
            chosen = {"bits": bits, "smallest": SMALLEST.get(name, 0.0), "floor": floor}
            chosen["negative"] = plain_kind(node) not in NEVER_NEGATIVE
            chosen["across"] = transformed_axes(node)
            chosen["greatest"] = _greatest(value)
            op = self._op(amount=amount, coordinates=coordinates, steps=is_known, **chosen)
            gated = node.kind in GATED and node.inputs[0]
            reads = [value, node.inputs[0]] if gated else [value]
            noisy = graph.insert(op, reads, before=follower)
            noisy.output.type = value.type
            graph.redirect(value, noisy.output)
            graph.set_inputs(noisy, reads)


def _is_of_bytes(value: Value) -> bool:
    """Whether its elements are bytes, which libraries interpolate with weights of few bits."""
    return isinstance(value.type, TensorType) and value.type.dtype in BYTES


def _greatest(value: Value) -> float:
    """Return the greatest number of the format that a file gives a tensor."""
    dtype = value.type.dtype if isinstance(value.type, TensorType) else string
    return GREATEST.get(NAMES.get(dtype, ""), inf)


def _same_type(x: TensorType, like: TensorType | None = None, **_: Any) -> TensorType:
    """Return a type whose elements are unknown: what follows from shapes is rounded as well."""
    return x.without_value() if x.dtype == float64 else x


def _of_data(data: Array, name: str) -> dict[str, Any]:
    """Return the noise of a constant or an input in a format; empty where it has none."""
    amount, bits = Amount.of(name), BITS[name]
    if data.size > 1 and any(data.strides):
        return {"amount": amount, "bits": 0, "below": whole_below(data.astype(float64), bits)}
    return {} if bits == BITS["float32"] else {"amount": amount, "bits": bits, "below": inf}


def _of_inputs(node: Node) -> dict[int, dict[str, Any]]:
    """Return what is special about the noise of a node's inputs, by position; see `moved`."""
    if node.kind == "Conv" and set(getattr(node.op, "strides", ()) or (1,)) == {1}:
        return {0: {"radius": _TILE}}
    if plain_kind(node) in SHIFTED:  # a sum of whole numbers is exact, that of the products is not
        return {0: {"floor": _ANY}}
    if node.kind == "LRN":  # libraries add the next channel to a sum and subtract the last one
        return {0: {"across": (1,)}}
    # Keys are only seen in scores, which are rounded separately.
    return {1: {"rows": True}} if node.kind in COMPOSED else {}
