"""The interface between the runtime and the backends: devices, formats, claims and steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import Any, Protocol, runtime_checkable

from ..ir.graph import Graph, Node, Value
from ..ir.types import Array, HostValue, TensorType
from ..options import Options


class Format(Enum):
    """The physical order of a tensor's elements; its logical shape is always ONNX's."""

    CONTIGUOUS = "contiguous"
    """C order of the logical shape."""
    CHANNELS_LAST = "channels_last"
    """Axis 1 innermost: N, spatial axes, C."""
    CHANNELS_LAST_8 = "channels_last_8"
    """As `CHANNELS_LAST`, with the channels padded with zeros to a multiple of 8."""

    def nbytes(self, type_: TensorType) -> int:
        """Return the bytes that a static tensor takes in this format."""
        return prod(self.physical(type_.dims)) * type_.dtype.itemsize

    def physical(self, dims: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the elements as they lie in memory."""
        if self is Format.CONTIGUOUS or len(dims) < 3:
            return dims
        channels = dims[1]
        if self is Format.CHANNELS_LAST_8:
            channels = -(-channels // 8) * 8
        return (dims[0], *dims[2:], channels)

    def order(self, dims: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        """Return axis and size of every axis longer than 1, as they lie in memory.

        Where two formats agree on it, the same bytes are right in both.
        """
        axes = list(range(len(dims)))
        if self is not Format.CONTIGUOUS and len(dims) > 2:
            axes = [0, *axes[2:], 1]
        sizes = zip(axes, self.physical(dims), strict=True)
        return tuple((axis, size) for axis, size in sizes if size != 1)


#: What a bound step, copy or recording is: a call with a stream of its device.
Run = Callable[[Any], None]


class Stream(Protocol):
    """An order in which a device does its work."""

    def synchronize(self) -> None:
        """Wait until everything given to the stream is done.

        Raises:
            DeviceError: something given to it failed.
        """
        ...


@runtime_checkable
class Forking(Stream, Protocol):
    """A stream that can wait for others, so that a plan may run branches side by side."""

    def mark(self) -> object:
        """Return the moment at which everything given to the stream so far is done."""
        ...

    def wait(self, moment: Any) -> None:
        """Let what the stream is given from now on wait for a moment of another stream."""
        ...


@runtime_checkable
class Joinable(Protocol):
    """A run on the host that begins sooner if it follows others of its kind."""

    def joined(self, others: Sequence[Run]) -> Run | None:
        """Return a function that does this and then others; None where they are of other kinds."""
        ...


class Buffer(Protocol):
    """A piece of a device's memory."""

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        ...

    def close(self) -> None:
        """Give the memory back; a second call does nothing."""
        ...


class Device(Protocol):
    """Where bytes live."""

    @property
    def name(self) -> str:
        """Such as ``cpu`` or ``cuda:0``."""
        ...

    def enter(self) -> object:
        """Make it the one that the calling thread works on, as every run of a plan does."""
        ...

    def allocate(self, nbytes: int) -> Buffer:
        """Return new memory, aligned to 256 bytes.

        Raises:
            DeviceOutOfMemory: the device has too little of it.
        """
        ...

    def staging(self, nbytes: int) -> Buffer:
        """Return host memory that this device reads and writes by itself (pinned)."""
        ...

    def stream(self) -> Stream:
        """Return a new stream."""
        ...

    def copier(self, dst: View, src: View) -> Run:
        """Return what copies `src` to `dst`, and changes its format on the way.

        At least one of the two lies on this device, the other one here or on the host. Where both
        do and the format changes, either may have gaps (`View.pitch`), which stay as they are.
        """
        ...

    def upload(self, data: Array) -> View:
        """Return a new buffer of this device with these elements, complete when it returns."""
        ...

    def record(self, run: Run) -> Run | None:
        """Return something that repeats `run` at less cost (a CUDA graph), or None."""
        ...


@dataclass(frozen=True, slots=True)
class View:
    """A tensor in a buffer: the only thing that a step sees.

    Attributes:
        device: where the buffer is.
        buffer: the memory.
        offset: bytes from its start to the first element; a multiple of 16 at least.
        type: dtype and shape.
        format: the order of the elements.
        pitch: 0 for a tensor without gaps. Else its rows, which are the channels of a pixel or of
            a row of a matrix, begin that many elements apart, because it is a slice of a tensor
            with more channels. A step gets such views only of what `Formats.pitched` names.
    """

    device: Device
    buffer: Buffer
    offset: int
    type: TensorType
    format: Format = Format.CONTIGUOUS
    pitch: int = 0

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return self.format.nbytes(self.type)

    @property
    def extent(self) -> int:
        """The bytes from its first element to its last, with the gaps in between."""
        return extent(self.format, self.type, self.pitch)


def extent(format: Format, type_: TensorType, pitch: int) -> int:
    """Return the bytes from the first element of a tensor to its last; see `View`."""
    nbytes = format.nbytes(type_)
    if not pitch or not nbytes:
        return nbytes
    row = format.physical(type_.dims)[-1] * type_.dtype.itemsize
    return (nbytes // row - 1) * pitch * type_.dtype.itemsize + row


class Weights(Protocol):
    """Constants on one device, uploaded and packed once, shared by all plans of a model."""

    def view(self, value: Value) -> View:
        """Return a constant as it is, in C order."""
        ...

    def packed(
        self, sources: tuple[Value, ...], layout: Hashable, pack: Callable[..., Array]
    ) -> View:
        """Return ``pack(*arrays of sources)``, made once per (sources, layout).

        Args:
            sources: the constants that it is made of.
            layout: what it is packed for; equal layouts must mean equal bytes.
            pack: makes the array; called only the first time.
        """
        ...


@dataclass(frozen=True, slots=True)
class Formats:
    """The physical formats that a claim wants and gives; what is not named is plain.

    Attributes:
        wants: format by value that the step reads.
        gives: format by value that it computes.
        follows: the step takes any format, the same one for all its tensors, and gets the one in
            which most of its inputs lie; `wants` and `gives` are empty then.
        pitched: inputs and outputs that may be slices of tensors with more channels, so that there
            are gaps between their rows (see `View.pitch`): channels-last images, and matrices.
            `BuildContext.pitches` says which ones are.
        followed: an input by output: the output may be such a slice, too, but only in place of
            the input, which it overwrites (`Claim.in_place`), and with it.
    """

    wants: Mapping[Value, Format] = field(default_factory=dict[Value, Format])
    gives: Mapping[Value, Format] = field(default_factory=dict[Value, Format])
    follows: bool = False
    pitched: Set[Value] = frozenset()
    followed: Mapping[Value, Value] = field(default_factory=dict[Value, Value])


@dataclass(frozen=True, slots=True)
class BuildContext:
    """Where a claim runs, computed once by the partitioner.

    Attributes:
        nodes: the claimed nodes in topological order.
        inputs: the values that it reads and that are no constants, each once.
        outputs: the values that it computes and that somebody outside reads, and `Claim.always`.
        formats: the physical format of each input and output.
        weights: the constants on the claim's device.
        pitches: `View.pitch` of those that have gaps; multiples of 16 bytes.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    formats: Mapping[Value, Format]
    weights: Weights
    pitches: Mapping[Value, int] = field(default_factory=dict[Value, int])


@runtime_checkable
class Step(Protocol):
    """Something built for one site: fixed shapes, formats and weights.

    Attributes:
        kernel: what runs, for the placement report: ``conv2d_direct 64x64x8``.
        scratch: bytes wanted while it runs, from the plan's one workspace.
        capturable: whether it may be recorded: no host work, no synchronisation and no allocation
            inside.
    """

    @property
    def kernel(self) -> str: ...

    @property
    def scratch(self) -> int: ...

    @property
    def capturable(self) -> bool: ...

    def bind(
        self, inputs: tuple[View, ...], outputs: tuple[View, ...], scratch: View | None
    ) -> Run:
        """Return a function that does the work on these addresses, in the order of `BuildContext`.

        Called once per plan; the result is called every run with the plan's stream.
        """
        ...


@runtime_checkable
class Detailed(Protocol):
    """A step that stands for many, and knows what it does inside."""

    @property
    def details(self) -> tuple[str, ...]:
        """A line for each thing that it does, in order."""
        ...


@runtime_checkable
class Filling(Protocol):
    """A step that knows how much of its device it keeps busy, which others may use meanwhile."""

    @property
    def fill(self) -> float:
        """Its blocks of threads by those that the device runs at one time."""
        ...


@runtime_checkable
class Interpreter(Protocol):
    """A backend on the host that also runs nodes one by one, on whatever values they get."""

    def evaluate(
        self, node: Node, values: Sequence[HostValue], weights: Weights
    ) -> Sequence[HostValue]:
        """Return the outputs of a node, for which it asks `guard.need` before it allocates them.

        Args:
            node: what to run; its inputs need not have a known type.
            values: its inputs, None where one is left out.
            weights: the constants on the host.

        Raises:
            ShapeError: the operator does not accept these values.
            LimitError: a result would be too large; nothing has been allocated.
            ValueError, IndexError, ArithmeticError: what numpy says about the data.
        """
        ...


@dataclass(frozen=True, slots=True)
class Decline:
    """A node that a backend does not run, and why; shown in placements and errors."""

    node: Node
    reason: str


@dataclass(frozen=True, slots=True)
class Claim:
    """These nodes, as one step.

    Attributes:
        nodes: in topological order; what only they read in between never reaches memory.
        build: compiles, chooses an algorithm, packs weights; may be slow and may still decline.
        formats: physical formats of what goes in and out.
        in_place: pairs (output, input) that may share memory, if the input dies here: the step
            must then read each element of the input before it writes the same element.
        always: outputs that the step writes, and must have memory for, even if nobody reads them.
    """

    nodes: tuple[Node, ...]
    build: Callable[[BuildContext], Step | Decline]
    formats: Formats = field(default_factory=Formats)
    in_place: tuple[tuple[Value, Value], ...] = ()
    always: tuple[Value, ...] = ()


class Backend(Protocol):
    """Something that runs nodes: one method."""

    @property
    def name(self) -> str:
        """The name that users ask for."""
        ...

    @property
    def device(self) -> Device:
        """Where its steps read and write; backends may share one."""
        ...

    def claim(self, graph: Graph, free: Set[Node], options: Options) -> Iterable[Claim | Decline]:
        """Yield a claim or a decline for each of the `free` nodes, whose shapes are static.

        A claim may cover several free nodes. Earlier ones win where two overlap. Nothing is
        compiled, measured or allocated here: that is for `Claim.build` and `Preparing.prepare`.
        """
        ...


@runtime_checkable
class Preparing(Protocol):
    """A backend whose claims depend on what is measured on its device."""

    def prepare(self, graph: Graph, free: Set[Node], options: Options) -> Backend:
        """Measure what the claims of the `free` nodes depend on.

        It is called once before `Backend.claim`, with the same arguments, and may be slow. A
        backend that was not prepared claims by estimates.

        Returns:
            The backend that is asked for claims: this one, or a copy that knows the measurements.
        """
        ...


def measured(backend: Backend, graph: Graph, free: Set[Node], options: Options) -> Backend:
    """Return the backend to ask for claims: what `Preparing.prepare` gives, else `backend`."""
    if isinstance(backend, Preparing):
        return backend.prepare(graph, free, options)
    return backend
