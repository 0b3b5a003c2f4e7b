"""The interface between the runtime and the backends: devices, claims and steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, MutableMapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, TypeVar, runtime_checkable

from ..base.record import record
from ..ir.graph import Graph, Node, Value
from ..ir.types import Array, HostValue, TensorType
from ..options import Options
from .format import Format

if TYPE_CHECKING:
    from .host import HostBuffer

P = TypeVar("P")
#: A bound step, copy or recording: called with a stream of its device, on which it enqueues work.
Run = Callable[[Any], None]


class Stream(Protocol):
    """A queue of work on a device, run in order."""

    def synchronize(self) -> None:
        """Wait until all work of the stream is done.

        Raises:
            DeviceError: some of the work failed.
        """
        ...


@runtime_checkable
class Forking(Stream, Protocol):
    """A stream that can wait for others, so that a plan can run branches concurrently."""

    def mark(self) -> object:
        """Record an event that is complete when all work given to the stream so far is done."""
        ...

    def wait(self, event: Any) -> None:
        """Make later work of the stream wait for an event of another stream."""
        ...


@runtime_checkable
class Joinable(Protocol):
    """A host run that is cheaper to start together with others of its kind."""

    def joined(self, others: Sequence[Run]) -> Run | None:
        """Return a run that does this and then `others`; None if they are of other kinds."""
        ...


@runtime_checkable
class Guarded(Protocol):
    """A host run within a context that whoever repeats it may enter once.

    Attributes:
        guard: returns the context; the same function for all runs of a kind.
        inside: the run without it.
    """

    guard: Callable[[], AbstractContextManager[object]]
    inside: Run


class Buffer(Protocol):
    """An allocation on a device."""

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        ...

    def close(self) -> None:
        """Free the memory; a second call does nothing."""
        ...


class Device(Protocol):
    """Allocates, copies, converts formats and records work."""

    @property
    def name(self) -> str:
        """Its name, such as ``cpu`` or ``cuda:0``."""
        ...

    def enter(self) -> object:
        """Make it the current device of the calling thread; every run of a plan does so."""
        ...

    def allocate(self, nbytes: int) -> Buffer:
        """Return new memory, aligned to 256 bytes.

        Raises:
            DeviceOutOfMemory: the device has too little memory.
        """
        ...

    def staging(self, nbytes: int) -> HostBuffer:
        """Return pinned host memory, which this device copies from and to, and kernels access."""
        ...

    def stream(self) -> Stream:
        """Return a new stream."""
        ...

    def copier(self, dst: View, src: View) -> Run:
        """Return a run that copies `src` to `dst`, converting the format if they differ.

        At least one of the two is on this device, the other one here or on the host. If both are
        here and the format changes, either may have gaps (`View.pitch`), which are left untouched.
        """
        ...

    def upload(self, data: Array) -> View:
        """Return a new buffer of this device with these elements; the copy is complete."""
        ...

    def record(self, run: Run) -> Run | None:
        """Return a run that replays `run` at less cost (a CUDA graph), or None."""
        ...


@runtime_checkable
class Screening(Protocol):
    """A device that looks for infinities and NaN in its memory."""

    def screen(self, view: View, found: HostBuffer) -> Run | None:
        """Return a run that writes 1 to `found` if `view` has any; None for its dtype.

        Args:
            view: dense elements.
            found: pinned memory of four bytes, an integer.
        """
        ...


@record
class View:
    """A tensor in a buffer; steps see tensors only as views.

    Attributes:
        device: where the buffer is.
        buffer: the memory.
        offset: bytes from its start to the first element; a multiple of 16.
        type: dtype and shape.
        format: the order of the elements.
        pitch: 0 for a dense tensor. Otherwise the distance in elements between rows (the channels
            of a pixel, or a row of a matrix), because the tensor is a slice of one with more
            channels. A step gets such views only of values in `Formats.pitched`.
    """

    device: Device
    buffer: Buffer
    offset: int
    type: TensorType
    format: Format = Format.CONTIGUOUS
    pitch: int = 0

    @property
    def nbytes(self) -> int:
        """Size of its elements in bytes, without gaps."""
        return self.format.nbytes(self.type)

    @property
    def extent(self) -> int:
        """Bytes from its first element to the end of its last, gaps included."""
        return extent(self.format, self.type, self.pitch)


def extent(format: Format, type_: TensorType, pitch: int) -> int:
    """Return the bytes from the first element of a tensor to the end of its last; see `View`."""
    nbytes = format.nbytes(type_)
    if not pitch or not nbytes:
        return nbytes
    row = format.physical(type_.dims)[-1] * type_.dtype.itemsize
    return (nbytes // row - 1) * pitch * type_.dtype.itemsize + row


#: The constants that are packed, what identifies the result, and what computes it; see `Weights`.
PackedConstant = tuple[tuple[Value, ...], Hashable, Callable[..., Array]]


class Weights(Protocol):
    """Constants on one device, uploaded and packed once, shared by all plans of a model."""

    def view(self, value: Value) -> View:
        """Return a constant, contiguous in C order."""
        ...

    def packed(
        self, sources: tuple[Value, ...], layout: Hashable, pack: Callable[..., Array]
    ) -> View:
        """Return ``pack(*arrays of sources)``, computed once per (sources, layout).

        Args:
            sources: the constants to pack.
            layout: identifies the result; equal layouts must mean equal bytes.
            pack: computes the array; called only the first time.
        """
        ...


@record
class Formats:
    """The physical formats of a claim's inputs and outputs; contiguous unless given.

    Attributes:
        wants: format by input value.
        gives: format by output value.
        also: outputs that the step stores in a second format, too.
        follows: the step takes any format, the same for all its tensors but those of `wants`, and
            gets that of most of its inputs; `gives` is then empty.
        pitched: inputs and outputs that may be slices of tensors with more channels, with gaps
            between their rows (see `View.pitch`): channels-last images, and matrices.
            `BuildContext.pitches` says which of them are.
        rows: those of `pitched` that may also be parts of the rows of a contiguous tensor with more
            than two axes.
    """

    wants: Mapping[Value, Format] = field(default_factory=dict[Value, Format])
    gives: Mapping[Value, Format] = field(default_factory=dict[Value, Format])
    also: Mapping[Value, Format] = field(default_factory=dict[Value, Format])
    follows: bool = False
    pitched: Set[Value] = frozenset()
    rows: Set[Value] = frozenset()


@record
class BuildContext:
    """What `Claim.build` needs to know: operands, their formats, and weights.

    Attributes:
        nodes: the claimed nodes in topological order.
        inputs: the non-constant values that the claim reads, each once.
        outputs: the values that it computes and that are read elsewhere, and `Claim.always`.
        formats: the physical format of each input and output.
        weights: the constants on the claim's device.
        pitches: `View.pitch` of inputs and outputs with gaps; multiples of 16 bytes.
        also: the outputs of `Formats.also`, with the second formats.
        at_end: whether the step should go through its tensors from the end to the beginning, if it
            can; see `plan.turns`.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    formats: Mapping[Value, Format]
    weights: Weights
    pitches: Mapping[Value, int] = field(default_factory=dict[Value, int])
    also: Mapping[Value, Format] = field(default_factory=dict[Value, Format])
    at_end: bool = False


@runtime_checkable
class Step(Protocol):
    """A built claim: for fixed shapes, formats and weights.

    Attributes:
        kernel: name of what runs, for the placement report: ``conv2d_direct 64x64x8``.
        scratch: scratch memory in bytes, from the plan's workspace.
        capturable: whether it may be recorded: it does no host work, synchronization or
            allocation.
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
        """Return a run for these addresses, whose order is that of `BuildContext`.

        Behind `outputs` are those of `BuildContext.also`.
        Called once per plan; the result is called in every run, with the plan's stream.
        """
        ...


@runtime_checkable
class Reading(Protocol):
    """A step that names what it will ask of `Weights`, so that constants are packed in parallel."""

    @property
    def constants(self) -> Iterable[PackedConstant]:
        """The constants, in any order."""
        ...


@runtime_checkable
class Packing(Protocol):
    """A device that can pack some constants itself, from their elements as they are."""

    def packed(
        self,
        pack: Callable[..., Array],
        sources: Sequence[Array],
        copies: MutableMapping[int, View],
    ) -> View | None:
        """Return ``pack(*sources)``, complete; None if the host has to compute it.

        May be called by several threads at a time.

        Args:
            pack: computes it on the host.
            sources: the constants that it is packed from.
            copies: copies of sources on the device by their ids, to which it may add. The caller
                closes them, and passes them on for what is packed from the same.

        Raises:
            DeviceError: the device refuses it.
        """
        ...


@runtime_checkable
class Detailed(Protocol):
    """A step that consists of many, such as an engine, and can describe them."""

    @property
    def details(self) -> tuple[str, ...]:
        """One line per part, in order."""
        ...


@runtime_checkable
class Launching(Protocol):
    """A step that runs kernels one after another."""

    @property
    def fewest_launches(self) -> int:
        """How many kernels it runs, wherever its tensors are."""
        ...


@runtime_checkable
class Estimated(Protocol):
    """A step that was chosen by an estimate of its time."""

    @property
    def estimate(self) -> float | None:
        """Its expected seconds; None if there was nothing to choose from."""
        ...


@runtime_checkable
class Turning(Protocol):
    """A step that may go through its tensors in either direction; others begin at the beginning."""

    @property
    def ends_at_end(self) -> bool:
        """Whether it stores the end of its results last."""
        ...


@runtime_checkable
class Filling(Protocol):
    """A step that knows how much of its device it occupies; others may use the rest."""

    @property
    def fill(self) -> float:
        """Its number of thread blocks divided by the number that the device runs at a time."""
        ...


def knows(step: Step | None, protocol: type[P]) -> TypeGuard[P]:
    """Whether a step has what one of these protocols names; looked for once in all of a class."""
    key = type(step), protocol
    if key not in _KNOWN:
        _KNOWN[key] = isinstance(step, protocol)
    return _KNOWN[key]


_KNOWN: dict[tuple[type, type], bool] = {}


@runtime_checkable
class Interpreter(Protocol):
    """A backend on the host that also runs single nodes on any values."""

    def evaluate(
        self, node: Node, values: Sequence[HostValue], weights: Weights
    ) -> Sequence[HostValue]:
        """Return the outputs of a node; calls `guard.need` before allocating them.

        Args:
            node: the node to run; its inputs need not have known types.
            values: its inputs, None for omitted ones.
            weights: the constants on the host.

        Raises:
            ShapeError: the operator does not accept these values.
            LimitError: a result would be too large; nothing has been allocated.
            ValueError, IndexError, ArithmeticError: raised by numpy for invalid data.
        """
        ...


@record
class Decline:
    """A node that a backend does not run, and the reason, which placements and errors show."""

    node: Node
    reason: str


@record
class Claim:
    """An offer to run some nodes as one step.

    Attributes:
        nodes: in topological order; values between them that nothing else reads get no memory.
        build: compiles, chooses an algorithm and packs weights; may be slow, and may decline.
        formats: physical formats of inputs and outputs.
        in_place: pairs (output, input) that may share memory if the input is not read later: the
            step must then read each element of the input before it writes the same element.
        always: outputs that the step writes, and needs memory for, even if they are not read.
    """

    nodes: tuple[Node, ...]
    build: Callable[[BuildContext], Step | Decline]
    formats: Formats = field(default_factory=Formats)
    in_place: tuple[tuple[Value, Value], ...] = ()
    always: tuple[Value, ...] = ()


class Backend(Protocol):
    """Claims and runs nodes: a name, a device and one method."""

    @property
    def name(self) -> str:
        """The name by which users select it."""
        ...

    @property
    def device(self) -> Device:
        """The device of its steps; backends may share one."""
        ...

    def claim(self, graph: Graph, free: Set[Node], options: Options) -> Iterable[Claim | Decline]:
        """Yield a claim or a decline for each of the `free` nodes, whose shapes are static.

        A claim may cover several free nodes; of overlapping claims the earlier one wins. Nothing
        is compiled, measured or allocated here, but in `Claim.build` and `Preparing.prepare`.
        """
        ...


@runtime_checkable
class Preparing(Protocol):
    """A backend whose claims depend on measurements on its device."""

    def prepare(self, graph: Graph, free: Set[Node], options: Options) -> Backend:
        """Measure what the claims of the `free` nodes depend on.

        Called once before `Backend.claim` with the same arguments; may be slow. A backend that was
        not prepared claims by estimates.

        Returns:
            The backend to ask for claims: this one, or a copy that knows the measurements.
        """
        ...


@runtime_checkable
class Ordering(Protocol):
    """A backend that reads some constants in another order than that of their axes."""

    def orders(self, node: Node) -> Iterable[tuple[Value, tuple[int, ...]]]:
        """Return constants that a node reads, with their axes in order, the outermost first.

        A model that only this backend runs holds them so, instead of copies in both orders.
        """
        ...


def measured(backend: Backend, graph: Graph, free: Set[Node], options: Options) -> Backend:
    """Return the backend to ask for claims: the result of `Preparing.prepare`, or `backend`."""
    if isinstance(backend, Preparing):
        return backend.prepare(graph, free, options)
    return backend
