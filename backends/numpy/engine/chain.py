"""Fused chains: a node, and elementwise nodes applied to blocks of its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Protocol

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType
from ....runtime.ir.graph import Node, Value
from ....runtime.ir.types import Array
from ..numerics.elementwise import CALLS, ELEMENTWISE
from ..numerics.elementwise_calls import elementwise_call
from ..numerics.halves import store
from .blocking import Block, Frame, blocks, cut, lengths
from .step import Bound, Tape

#: Elements that several calls go over while these are in the cache, and how many calls that are.
PIECE, SEVERAL = 1 << 16, 3


class Finish(Protocol):
    """Records the stages of a chain for one block; see `Chain.finish`."""

    def __call__(self, tape: Tape, block: Block, source: Array | None = None) -> None: ...


@record
class ChainStage:
    """An elementwise node applied in place to the previous result.

    Attributes:
        node: the node.
        at: index of the input that is the previous result.
    """

    node: Node
    at: int

    @property
    def others(self) -> tuple[Value, ...]:
        """Its other inputs."""
        return tuple(v for i, v in enumerate(self.node.inputs) if v is not None and i != self.at)


@record
class Chain:
    """A node, and the elementwise nodes applied to each block of its result."""

    head: Node
    stages: tuple[ChainStage, ...] = ()

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, head first."""
        return (self.head, *(stage.node for stage in self.stages))

    @property
    def operands(self) -> tuple[Value, Value, Value | None]:
        """The first two inputs of the head, which are required, and the third one.

        Raises:
            ValueError: one of the first two is missing.
        """
        first, second, *rest = self.head.inputs
        if first is None or second is None:
            raise ValueError(f"'{self.head.name}' lacks an input")
        return first, second, rest[0] if rest else None

    @property
    def output(self) -> Value:
        """The result of the last one."""
        return self.nodes[-1].output

    @property
    def title(self) -> str:
        """The operators, such as ``Conv + Add + Relu``."""
        return " + ".join(node.kind for node in self.nodes)

    @property
    def calls(self) -> int:
        """Number of calls of the stages per element, expensive ones counted several times."""
        return sum(CALLS.get(type(stage.node.op), 1) for stage in self.stages)

    def frame(self, *candidates: tuple[int, ...]) -> Frame:
        """Return the first frame of the result that fits every operand of the stages.

        Args:
            candidates: `Frame.starts`, coarse ones first; the unmerged frame is tried last.
        """
        dims = self.output.tensor.dims
        operands = [value.tensor.dims for stage in self.stages for value in stage.others]
        for starts in candidates:
            frame = Frame(dims, starts)
            if all(map(frame.fits, operands)):
                return frame
        return Frame.finest(dims)

    def finish(self, frame: Frame, bound: Bound, dtype: DType | None = None) -> Finish:
        """Return a function that records the stages for one block of the result.

        The previous values of the block are in the result itself, or in an array of its shape that
        the stages may overwrite.

        Args:
            frame: of the result.
            bound: the step's arrays.
            dtype: of the previous values; None for that of the result.
        """
        own = self.output.tensor.dtype
        target = frame.view(bound[self.output])
        work: list[tuple[Callable[..., object], list[Array | None], int]] = []
        for stage in self.stages:
            operands = [
                None
                if value is None or i == stage.at
                else frame.view(
                    bound[value]
                    if dtype is None or value.tensor.dtype != own
                    else bound.as_dtype(value, dtype)
                )
                for i, value in enumerate(stage.node.inputs)
            ]
            work.append((ELEMENTWISE[type(stage.node.op)](stage.node.op), operands, stage.at))

        def record(tape: Tape, block: Block, source: Array | None = None) -> None:
            for piece in self._pieces(lengths(block)):
                pairs = zip(block, piece, strict=True)
                part = tuple(slice(b.start + p.start, b.start + p.stop) for b, p in pairs)
                record_piece(tape, part, None if source is None else source[piece])

        def record_piece(tape: Tape, block: Block, source: Array | None) -> None:
            result = cut(target, block)
            running = result if source is None else source
            for number, (function, operands, at) in enumerate(work, 1):
                arrays = [None if data is None else cut(data, block) for data in operands]
                arrays[at] = running
                if number == len(work) and running.dtype == result.dtype:
                    running = result
                tape.append(elementwise_call(function, *arrays, out=running))
            if work and running is not result:
                tape.append(partial(store, result, running))

        return record

    def apply(self, tape: Tape, bound: Bound, data: Array) -> None:
        """Record the stages for previous values in any order, in place.

        Args:
            tape: the calls.
            bound: the step's arrays.
            data: the previous values, of the dtype of the result; other operands are scalars.
        """
        for piece in self._pieces(data.shape):
            part = data[piece]
            for stage in self.stages:
                operands = [
                    None if value is None else bound[value].reshape(()) if i != stage.at else part
                    for i, value in enumerate(stage.node.inputs)
                ]
                function = ELEMENTWISE[type(stage.node.op)](stage.node.op)
                tape.append(elementwise_call(function, *operands, out=part))

    def _pieces(self, shape: tuple[int, ...]) -> Iterator[Block]:
        """Yield parts of a block that stay in the cache while stages go over them several times."""
        return blocks(shape, PIECE if self.calls >= SEVERAL else max(1, prod(shape)))
