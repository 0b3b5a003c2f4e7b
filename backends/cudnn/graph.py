"""An operation as a cuDNN graph, and the engines that cuDNN has for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from math import inf
from time import perf_counter
from typing import Any

from ...runtime.base.record import record
from ..cuda.driver.streams import CudaStream
from .library import NoPlan
from .operation import DATA_TYPES, SLOW, Operand, Operation, Ranked
from .session import Session


@record
class CudnnEngine:
    """One built plan of a graph.

    Attributes:
        graph: the graph that it computes.
        index: its place in cuDNN's list.
        name: cuDNN's name for engine and knobs, such as ``eng44_k2=12_k18=0``. (The frontend has no
            names for some knobs, so that an engine cannot be built from them.)
        scratch: bytes of workspace.
        compiled: whether cuDNN generated and compiled its kernel for this graph (runtime fusion).
        milliseconds: build time.
    """

    graph: OperationGraph
    index: int
    name: str
    scratch: int
    compiled: bool = False
    milliseconds: float = 0.0

    @property
    def slow(self) -> bool:
        """Whether to use it only if nothing else runs."""
        return self.graph.rank(self.name) == SLOW

    def execute(self, addresses: Mapping[str, int], scratch: int, stream: CudaStream) -> None:
        """Launch it on a stream; see `Session.execute`."""
        pack = {self.graph.tensors[role]: address for role, address in addresses.items()}
        self.graph.session.execute(self.graph.frontend, self.index, pack, scratch, stream)


class OperationGraph:
    """The cuDNN graph of an operation.

    Args:
        session: the cuDNN session of its GPU.
        operation: the computation.
        limit: maximum workspace of an engine in bytes; None for no limit.

    Attributes:
        frontend: NVIDIA's graph object.
        tensors: the frontend's number of each tensor of an execution, by role.
        refused: the reason for each plan that was not allowed or did not build, by name.

    Raises:
        NoPlan: cuDNN cannot express it.
    """

    def __init__(self, session: Session, operation: Operation, limit: int | None) -> None:
        self.session = session
        self.operation = operation
        self.limit = limit
        self.tensors: dict[str, int] = {}
        self.refused: dict[str, str] = {}
        self.frontend: Any = self._build()

    def _build(self) -> Any:
        cudnn, operation = self.session.vendor.frontend, self.operation
        operands, results = operation.operands, operation.results
        with self.session.planning(f"graph of {operation}"):
            graph = cudnn.pygraph(
                name=operation.title,
                io_data_type=cudnn.data_type.FLOAT,
                intermediate_data_type=cudnn.data_type.FLOAT,
                compute_data_type=cudnn.data_type.FLOAT,
                **self.session.place,
            )
            reads = {r: self._tensor(graph, r, o) for r, o in operands.items() if r not in results}
            given = operation.express(graph, cudnn, reads)
            for role in results:
                operand, tensor = operands[role], given[role]
                tensor.set_output(True).set_data_type(self._type(operand))
                tensor.set_dim(list(operand.dims)).set_stride(list(operand.strides))
            graph.validate()
            graph.build_operation_graph()
            self.tensors |= {role: given[role].get_uid() for role in results}
            for kind, deselect in (
                (cudnn.numerical_note, graph.deselect_numeric_notes),
                (cudnn.behavior_note, graph.deselect_behavior_notes),
            ):
                deselect([getattr(kind, note) for note in operation.notes if hasattr(kind, note)])
            if self.limit is not None:
                graph.deselect_workspace_greater_than(self.limit)
        return graph

    def _tensor(self, graph: Any, role: str, operand: Operand) -> Any:
        tensor = graph.tensor(
            name=role,
            dim=list(operand.dims),
            stride=list(operand.strides),
            data_type=self._type(operand),
        )
        self.tensors[role] = tensor.get_uid()
        return tensor

    def _type(self, operand: Operand) -> Any:
        if operand.dtype not in DATA_TYPES:
            raise NoPlan(f"{operand}: cuDNN has no such dtype")
        return getattr(self.session.vendor.frontend.data_type, DATA_TYPES[operand.dtype])

    @cached_property
    def _listed(self) -> int:
        """The number of plans that cuDNN's heuristics propose, best first."""
        modes = self.session.vendor.frontend.heur_mode
        with self.session.planning(f"heuristics for {self.operation}"):
            self.frontend.create_execution_plans([modes.A, modes.FALLBACK])
        return int(self.frontend.get_execution_plan_count())

    @cached_property
    def _compiled(self) -> tuple[bool, ...]:
        """Whether each plan's engine is compiled at run time."""
        note = self.session.vendor.frontend.behavior_note.RUNTIME_COMPILATION
        notes_of, count = self.frontend.get_behavior_notes_for_plan_at_index, self._listed
        with self.session.planning("behavior notes"):
            notes = [notes_of(index) for index in range(count)]
        return tuple(note in found for found in notes)

    def plans(self) -> tuple[tuple[str, bool], ...]:
        """Return every plan's name and whether it is compiled at run time; builds none.

        They are in the order of `engines` and include plans that are not allowed.

        Raises:
            NoPlan: the heuristics propose nothing at all.
        """
        return tuple((self._name(index), self._compiled[index]) for index in self._order())

    def rank(self, engine: str) -> int:
        """Return the position of an engine of this name in the order of trials; see `Ranked`."""
        return self.operation.rank(engine) if isinstance(self.operation, Ranked) else 0

    def _order(self) -> list[int]:
        return sorted(range(self._listed), key=lambda index: self.rank(self._name(index)))

    def _name(self, index: int) -> str:
        return str(self.frontend.get_plan_name_at_index(index))

    def engines(self, max_compiled: float = inf) -> Iterator[CudnnEngine]:
        """Yield every allowed engine, built, by rank and then in the heuristics' order.

        Args:
            max_compiled: maximum number of runtime-compiled engines to try.

        Raises:
            NoPlan: the heuristics propose nothing at all.
        """
        for index in self._order():
            if self._compiled[index]:
                max_compiled -= 1
                if max_compiled < 0:
                    continue
            try:
                yield self._built(index)
            except NoPlan as error:
                self.refused[self._name(index)] = str(error)

    def engine(self, name: str) -> CudnnEngine:
        """Return the engine of this name, built.

        Raises:
            NoPlan: the heuristics do not propose it, or it is not allowed.
        """
        for index in range(self._listed):
            if self._name(index) == name:
                return self._built(index)
        raise NoPlan(f"{self.operation} has no engine {name}")

    def _built(self, index: int) -> CudnnEngine:
        graph, begin = self.frontend, perf_counter()
        with self.session.planning("plan"):
            graph.build_plan_at_index(index)
            took = 1e3 * (perf_counter() - begin)
            scratch = int(graph.get_workspace_size_plan_at_index(index))
        name = self._name(index)
        return CudnnEngine(self, index, name, scratch, self._compiled[index], took)
