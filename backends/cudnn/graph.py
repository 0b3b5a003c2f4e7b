"""A convolution as one cuDNN graph, and the engines that cuDNN has for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from ..cuda.device import CudaStream
from ..cuda.layout import Ints
from .conv import Convolution
from .session import Session
from .vendor import NoPlan

Role = Literal["x", "w", "residual", "bias", "y"]

# Winograd and FFT spread one NaN over a whole channel; tensor cores round float32 to TF32; the
# others let results differ from run to run or keep them in less than float32.
_NEVER = (
    "FFT",
    "NONDETERMINISTIC",
    "WINOGRAD",
    "WINOGRAD_TILE_13x13",
    "WINOGRAD_TILE_4x4",
    "WINOGRAD_TILE_6x6",
)
_TENSOR_CORES = ("DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION", "TENSOR_CORE")


@dataclass(frozen=True, slots=True)
class Engine:
    """One built plan of a graph.

    Attributes:
        graph: what it computes.
        index: its place in cuDNN's list.
        name: cuDNN's name for engine and knobs, such as ``eng44_k2=12_k18=0``. (The frontend
            knows no name for some knobs, so that an engine cannot be built from them.)
        scratch: bytes of workspace.
    """

    graph: ConvolutionGraph
    index: int
    name: str
    scratch: int

    def execute(self, addresses: Mapping[Role, int], scratch: int, stream: CudaStream) -> None:
        """Put it on a stream; see `Session.execute`."""
        pack = {self.graph.tensors[role]: address for role, address in addresses.items()}
        self.graph.session.execute(self.graph.frontend, self.index, pack, scratch, stream)


class ConvolutionGraph:
    """A convolution with its epilogue in cuDNN's words.

    Args:
        session: where it runs.
        convolution: what it computes.
        limit: greatest workspace of an engine in bytes; None for no limit.

    Attributes:
        frontend: NVIDIA's graph object.
        tensors: its number for each tensor that an execution needs.
        refused: cuDNN's reason by name of each plan that was not allowed or did not build.

    Raises:
        NoPlan: cuDNN cannot express it.
    """

    def __init__(self, session: Session, convolution: Convolution, limit: int | None) -> None:
        self.session = session
        self.convolution = convolution
        self.limit = limit
        self.tensors: dict[Role, int] = {}
        self.refused: dict[str, str] = {}
        self.frontend: Any = self._build()

    def _build(self) -> Any:
        library, convolution = self.session.vendor, self.convolution
        cudnn = library.frontend
        float32 = cudnn.data_type.FLOAT
        with library.planning(f"graph of {convolution}"):
            graph = cudnn.pygraph(
                name=str(convolution),
                io_data_type=float32,
                intermediate_data_type=float32,
                compute_data_type=float32,
                **self.session.place,
            )
            y = self._with_epilogue(graph, self._convolved(graph))
            y.set_output(True).set_data_type(float32)
            y.set_dim(list(convolution.y)).set_stride(list(convolution.strides_of(convolution.y)))
            graph.validate()
            graph.build_operation_graph()
            self.tensors["y"] = y.get_uid()
            notes = _NEVER if convolution.tensor_cores else _NEVER + _TENSOR_CORES
            graph.deselect_numeric_notes([getattr(cudnn.numerical_note, note) for note in notes])
            if self.limit is not None:
                graph.deselect_workspace_greater_than(self.limit)
        return graph

    def _tensor(self, graph: Any, role: Role, dims: Ints) -> Any:
        tensor = graph.tensor(
            name=role,
            dim=list(dims),
            stride=list(self.convolution.strides_of(dims)),
            data_type=self.session.vendor.frontend.data_type.FLOAT,
        )
        self.tensors[role] = tensor.get_uid()
        return tensor

    def _convolved(self, graph: Any) -> Any:
        c = self.convolution
        x, w = self._tensor(graph, "x", c.x), self._tensor(graph, "w", c.w)
        windows = {
            "pre_padding": list(c.pads_begin),
            "post_padding": list(c.pads_end),
            "stride": list(c.strides),
            "dilation": list(c.dilations),
        }
        if not c.transposed:
            return graph.conv_fprop(image=x, weight=w, **windows)
        return graph.conv_dgrad(loss=x, filter=w, **windows)

    def _with_epilogue(self, graph: Any, y: Any) -> Any:
        """Append the epilogue; cuDNN's engines want the residual before the bias."""
        c = self.convolution
        if c.epilogue.residual:
            y = graph.add(a=y, b=self._tensor(graph, "residual", c.y))
        if c.epilogue.bias:
            y = graph.bias(input=y, bias=self._tensor(graph, "bias", c.bias))
        return graph.relu(input=y) if c.epilogue.relu else y

    @cached_property
    def _listed(self) -> int:
        """Number of plans that cuDNN's heuristics propose, best first."""
        library = self.session.vendor
        modes = library.frontend.heur_mode
        with library.planning(f"heuristics for {self.convolution}"):
            self.frontend.create_execution_plans([modes.A, modes.FALLBACK])
        return int(self.frontend.get_execution_plan_count())

    def engines(self) -> Iterator[Engine]:
        """Yield every engine that is allowed, in the order of cuDNN's heuristics, built.

        Raises:
            NoPlan: the heuristics propose nothing at all.
        """
        for index in range(self._listed):
            try:
                yield self._built(index)
            except NoPlan as error:
                name = str(self.frontend.get_plan_name_at_index(index))
                self.refused[name] = str(error)

    def engine(self, name: str) -> Engine:
        """Return the engine of this name, built.

        Raises:
            NoPlan: the heuristics do not propose it, or it is not allowed.
        """
        for index in range(self._listed):
            if self.frontend.get_plan_name_at_index(index) == name:
                return self._built(index)
        raise NoPlan(f"{self.convolution} has no engine {name}")

    def _built(self, index: int) -> Engine:
        graph = self.frontend
        with self.session.vendor.planning("plan"):
            graph.build_plan_at_index(index)
            name = str(graph.get_plan_name_at_index(index))
            return Engine(self, index, name, int(graph.get_workspace_size_plan_at_index(index)))
