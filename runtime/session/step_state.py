"""The inputs of a decoder's step, computed from a state that the step itself advances.

So a step needs nothing from the host: the state is in the memory of the caches, and each step
writes the state that the next one reads. A state consists of the tokens to read next, or of those
of all positions if the choice of the next one depends on them, the number of positions read, the
number of padding positions of each sequence, the tokens chosen so far, and the inputs of sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from ..base.record import record
from ..errors import UnsupportedError
from ..ir.dtypes import int64
from ..ir.graph import Graph, Value
from ..ir.types import Array, TensorType
from ..ops.elementwise import (
    Abs,
    Add,
    And,
    Cast,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    Sub,
    Where,
)
from ..ops.gather import GatherElements, ScatterElements, ScatterND
from ..ops.reduce import ReduceSum
from ..passes.bucketing import Bucket
from .cache_layout import ENCODED, DecoderLayout, Role
from .node_writer import NodeWriter
from .sampling import NOT_FINITE, Following
from .sampling_graph import SamplingGraph
from .step_inputs import Tokens

Dims = tuple[int, ...]
#: Names of the inputs of a step that form its state, and of the results that form the next.
TOKENS, COUNT, PADDING = "state.tokens", "state.count", "state.padding"
NEXT_TOKENS, NEXT_COUNT = "state.tokens.next", "state.count.next"
#: Names of the table of chosen tokens, int64 [room, batch], before and after a step: row i has
#: those of the step that followed i positions.
CHOSEN, NEXT_CHOSEN = "state.chosen", "state.chosen.next"


@record
class Feedback:
    """Makes a step of one token read and write its own state.

    Attributes:
        layout: of the model.
        batch: number of sequences.
        room: number of positions of the caches.
        chooses: chooses the next token.
    """

    layout: DecoderLayout
    batch: int
    room: int
    chooses: SamplingGraph

    @property
    def types(self) -> dict[str, TensorType]:
        """The types of the state, by name."""
        length = self.room + 1 if self._keeps_all else 1
        sizes = {TOKENS: (self.batch, length), COUNT: (1,), PADDING: (self.batch, 1)}
        sizes[CHOSEN] = (self.room, self.batch)
        types = {name: TensorType(int64, dims) for name, dims in sizes.items()}
        return {**types, **self.chooses.types(self.batch, self.room)}

    @property
    def _keeps_all(self) -> bool:
        """Whether the state has all tokens, from each sequence's first on, not only the last."""
        return self.chooses.reads_history

    @property
    def stays(self) -> tuple[str, ...]:
        """Names of the parts of the state that do not change from step to step."""
        return tuple(name for name in self.types if name not in (TOKENS, COUNT, CHOSEN))

    def state(self, read: Tokens, first: Array, following: Following) -> dict[str, Array]:
        """Return the state before a step, but what has been chosen.

        Args:
            read: the tokens read so far.
            first: int64 [batch], the tokens to read next.
            following: how the next tokens are chosen.
        """
        tokens = first[:, None]
        if self._keeps_all:
            tokens = np.zeros(self.types[TOKENS].dims, np.int64)
            for row, (ids, mask, last) in enumerate(zip(read.ids, read.mask, first, strict=True)):
                seen = [*ids[mask == 1], last]
                tokens[row, : len(seen)] = seen
        padding = read.length - read.mask.sum(1, keepdims=True)
        chosen = self.chooses.state(following, self.batch, self.room, read.length)
        return {TOKENS: tokens, COUNT: np.array([read.length]), PADDING: padding, **chosen}

    def __call__(self, bucket: Bucket) -> Bucket:
        """Rewrite the graph of a step in place; return it with the remaining inputs.

        Its inputs are then the caches and the state; its results are the caches and the next state.

        Raises:
            UnsupportedError: an input cannot be computed from the state.
        """
        graph = bucket.graph
        state = {name: graph.add_input(name, type_) for name, type_ in self.types.items()}
        grown = graph.values[bucket.count]
        graph.redirect(grown, state[COUNT])
        graph.drop_input(grown)
        self._feed(graph, state[TOKENS], state[COUNT], state[PADDING])
        presents = {each.present for each in self.layout.caches}
        results = {n: v for n, v in graph.outputs.items() if n in presents}
        results |= self._choose(graph, state)
        graph.set_outputs(results)
        graph.sweep()
        left = {value.name for value in graph.inputs}
        return replace(
            bucket,
            count=COUNT,
            inputs={n: t for n, t in bucket.inputs.items() if n in left},
            outputs={n: t for n, t in bucket.outputs.items() if n in results},
        )

    # ── in ───────────────────────────────────────────────────────────────────────────────────

    def _feed(self, graph: Graph, tokens: Value, count: Value, padding: Value) -> None:
        inputs = {value.name: value for value in graph.inputs}
        add = NodeWriter(graph, graph.nodes[0])

        def last(dims: Dims) -> Value:
            """Return the index of each sequence's token in it, of a shape for all sequences."""
            return add(Sub(), count, add.shaped(padding, dims))

        for role, info in self.layout.inputs.items():
            if role in ENCODED or (value := inputs.get(info.name)) is None:
                continue
            type_ = value.tensor
            if role in ("use_cache", "logits_to_keep", "token_types"):
                data = np.zeros(type_.dims) if role == "token_types" else np.ones(type_.dims)
                graph.freeze(value, data.astype(type_.dtype))
                continue
            if role == "mask" and self.layout.padding == "right":
                _count(add, value, self.batch, last)
            found = self._value(add, role, type_, count, padding, last, tokens)
            if found.tensor.dtype != type_.dtype:
                found = add(Cast(to=type_.dtype), found)
            graph.redirect(value, add.shaped(found, type_.dims))
            graph.drop_input(value)

    def _value(
        self,
        add: NodeWriter,
        role: Role,
        type_: TensorType,
        count: Value,
        padding: Value,
        last: Callable[[Dims], Value],
        tokens: Value,
    ) -> Value:
        """Return the value of an input; see `StepInputs.feeds`."""
        if role == "ids":
            if not self._keeps_all:
                return tokens
            return add(GatherElements(axis=1), tokens, last((self.batch, 1)))
        if role in ("positions", "last_key"):
            return last(type_.dims)
        if role in ("cache_positions", "past_length"):
            return count
        if role == "total_length":
            return add(Add(), count, add.constant([1]))
        if role == "mask":
            places = add.constant(np.arange(type_.dims[-1])[None])
            if self.layout.padding == "right":
                return add(LessOrEqual(), places, last((self.batch, 1)))
            are_read = add(LessOrEqual(), places, count)
            return add(And(), add(GreaterOrEqual(), places, padding), are_read)
        raise UnsupportedError(f"'{self.layout.inputs[role].name}' is computed on the host")

    # ── out ──────────────────────────────────────────────────────────────────────────────────

    def _choose(self, graph: Graph, state: Mapping[str, Value]) -> dict[str, Value]:
        """Return the state after the step."""
        add = NodeWriter(graph)
        tokens, count = state[TOKENS], state[COUNT]
        scores = graph.outputs[self.layout.logits.name]
        *_, vocabulary = scores.tensor.dims
        if np.prod(scores.tensor.dims) != self.batch * vocabulary:
            raise UnsupportedError(f"'{self.layout.logits.name}' has scores of several positions")
        scores = add.shaped(scores, (self.batch, vocabulary))
        last = add(Sub(), count, state[PADDING])
        token, greatest = self.chooses(add, scores, state, tokens, last, count)
        infinite = add.constant(np.inf, greatest.tensor.dtype)
        is_finite = add(Less(), add(Abs(), greatest), infinite)
        place = add.constant(np.zeros((self.batch, 1), np.int64))
        if self._keeps_all:
            place = add(Add(), last, add.constant([1]))
        chosen = add(Where(), is_finite, token, add.constant(NOT_FINITE))
        row, chosen = add.shaped(count, (1, 1)), add.shaped(chosen, (1, self.batch))
        return {
            NEXT_CHOSEN: add(ScatterND(), state[CHOSEN], row, chosen),
            NEXT_TOKENS: add(ScatterElements(axis=1), tokens, place, token),
            # Add would be merged with equal sums of sizes; this must read the count last, as it
            # overwrites it.
            NEXT_COUNT: add(Sub(), count, add.constant([-1])),
        }


def _count(add: NodeWriter, mask: Value, batch: int, last: Callable[[Dims], Value]) -> None:
    """Replace sums over a mask, which count the tokens of each sequence, up to its `last`."""
    values = [mask]
    for value in values:
        for node in list(value.consumers):
            if isinstance(node.op, Cast) or (
                isinstance(node.op, Where) and node.inputs[1] is value and _is_zero(node.inputs[2])
            ):
                values.append(node.output)
            elif isinstance(node.op, ReduceSum) and node.inputs[0] is value:
                dims = node.output.tensor.dims
                if np.prod(dims) == batch:
                    total = add(Add(), last(dims), add.constant([1]))
                    found = add(Cast(to=node.output.tensor.dtype), total)
                    add.redirect(node.output, add.shaped(found, dims))


def _is_zero(value: Value | None) -> bool:
    return value is not None and value.data is not None and not value.data.any()
