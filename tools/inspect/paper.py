"""Plans for a GPU that is not present: which kernel would run each node, without a driver.

The cuda backend claims nodes and chooses kernels for a target, which needs neither a GPU nor the
packages for CUDA; only the memory of plans needs these packages. Nothing is compiled or measured,
and constants are packed for their size alone; only TensorRT-RTX builds its engines, without a GPU,
and does not load them. Control flow that a device would decide, and nodes whose results have
data-dependent shapes, are shown as the host's; what reads these is planned when it first runs.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ...backends.numpy.backend import NumpyBackend, evaluate
from ...runtime.control.resources import interpreter_of
from ...runtime.errors import BackendUnavailable
from ...runtime.ir.graph import Graph, Node
from ...runtime.options import Options
from ...runtime.plan.backend import Backend, BuildContext, Claim, Decline, Run, Stream, View
from ...runtime.plan.host import HOST
from ...runtime.plan.layout import lay_out
from ...runtime.plan.partition import holds
from ...runtime.plan.plan import Memory, Plan
from ...runtime.plan.weights import WeightStore
from ...runtime.session.model import Model
from ...runtime.session.placement import PlacedRow, describe, placement_of
from ...runtime.session.program_cache import Optimised

if TYPE_CHECKING:
    from ...backends.cuda.recipe.source import KernelSource
    from ...backends.cuda.recipe.targets import Target

#: Backends that can plan for an absent GPU.
PLANNED = ("cuda", "tensorrt")


@dataclass(slots=True)
class _Compiler:
    """A compiler that compiles nothing."""

    target: Target

    def submit(self, source: KernelSource) -> Future[bytes]:
        nothing = Future[bytes]()
        nothing.set_result(b"")
        return nothing


@dataclass(eq=False, slots=True)
class _Device:
    """A GPU, as far as needed before plans are bound to memory."""

    compiler: _Compiler
    name: str = "cuda:0"
    allocated: int = field(default=0)


class _Step:
    """A step of the host that computes nothing."""

    kernel, scratch, capturable = "nothing", 0, False

    def bind(
        self, inputs: tuple[View, ...], outputs: tuple[View, ...], scratch: View | None
    ) -> Run:
        return _do_nothing


def _do_nothing(stream: Stream) -> None:
    pass


def _build_nothing(site: BuildContext) -> _Step:
    return _Step()


class _Absent:
    """A backend that has a GPU and takes nothing: with it, nodes wait for sizes as on a device."""

    name = "absent"

    def __init__(self, device: Any) -> None:
        self.device = device

    def claim(self, graph: Graph, free: Set[Node], options: Options) -> Iterator[Claim | Decline]:
        return iter(())


class _Host(NumpyBackend):
    """Claims what numpy does, without choosing algorithms, packing weights or recording calls."""

    def claim(self, graph: Graph, free: Set[Node], options: Options) -> Iterator[Claim | Decline]:
        for answer in super().claim(graph, free, options):
            yield replace(answer, build=_build_nothing) if isinstance(answer, Claim) else answer


def target_of(text: str) -> Target:
    """Return a target by its name; raises UsageError if there is none: see `named_target`."""
    from ...backends.cuda.recipe.targets import named_target

    return named_target(text)


def describe_target(target: Target) -> str:
    """Return its name and size in words."""
    return f"{target.arch}, {target.processors} multiprocessors"


def paper_backend(target: Target) -> Backend:
    """Return the cuda backend for a target that is not present; its steps cannot be bound."""
    from ...backends.cuda.backend import CudaBackend

    device: Any = _Device(_Compiler(target))
    return CudaBackend(device)


def paper_rows(
    model: Model,
    target: Target,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    behind: Sequence[Backend] = (),
    backend: str = "cuda",
) -> tuple[PlacedRow, ...]:
    """Return the rows of a model's plans on the cuda or tensorrt backend for a target.

    Args:
        model: loaded for numpy, with the desired options.
        target: the GPU.
        shapes: of the inputs.
        behind: backends for nodes that this one declines.
        backend: ``cuda``, or ``tensorrt``, which builds its engines for the GPU.

    Raises:
        BackendUnavailable: TensorRT is not installed, or cannot build for this GPU.
        UnsupportedError: no backend takes some nodes; lists each with the reasons.
    """
    made = paper_backend(target)
    device: Any = made.device
    front = (_tensorrt_for(device, target),) if backend == "tensorrt" else ()
    chain = (*front, made, *behind)
    options = replace(model.options, tune=False)  # measurements are of another GPU

    def rows(plan: Plan) -> Iterator[PlacedRow]:
        devices = {backend.device for backend in chain} | {HOST}
        stores = {each: WeightStore(each) for each in devices}
        layout, found = lay_out(plan.graph.clone(), chain, options, stores)
        yield from describe(layout.rows, found.refusals)

    # Its programs tell which graphs are planned, and in which order; they never run.
    outlined, loops = (_Host(), _Absent(device)), replace(options, control="host")
    made = Optimised(model.graph, model.rewrites)
    source = replace(model.source, mapped=())  # the files stay open
    with Model(model.imported, outlined, loops, evaluate, source, made) as outline:
        program = outline.prepare(shapes)
        interpreter_of(chain, [node for node in program.graph.nodes if not holds(node)])
        return placement_of(program, rows).rows


def paper_memory(
    model: Model,
    target: Target,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    behind: Sequence[Backend] = (),
) -> Memory:
    """Return the memory that a model's plans take on the cuda backend for a target.

    Args:
        model: loaded for numpy, with the desired options.
        target: the GPU.
        shapes: of the inputs.
        behind: backends for nodes that cuda declines.

    Raises:
        BackendUnavailable: the packages for CUDA are missing.
        UnsupportedError: no backend takes some nodes; lists each with the reasons.
    """
    with needing_cuda_packages():
        from ...backends.cuda.backend import CudaBackend
        from ...backends.cuda.on_paper import PaperDevice

        device: Any = PaperDevice(target, None, packs=True)
    device.compiler = _Compiler(target)
    options = replace(model.options, tune=False)  # measurements are of another GPU
    made = Optimised(model.graph, model.rewrites)
    source = replace(model.source, mapped=())  # the files stay open
    backends = (CudaBackend(device), *behind)
    with Model(model.imported, backends, options, evaluate, source, made) as planned:
        return planned.memory(shapes)


@contextmanager
def needing_cuda_packages() -> Generator[None]:
    """Raise BackendUnavailable for imports that fail without the packages for CUDA."""
    try:
        yield
    except ImportError as error:
        from ...backends.cuda import REMEDY

        missing = (
            f"the CUDA packages for Python are missing ({error}); compiling for a GPU elsewhere "
            "and planning its memory need them, too"
        )
        raise BackendUnavailable("cuda", missing, REMEDY) from None


def _tensorrt_for(device: Any, target: Target) -> Backend:
    """Return the tensorrt backend for a GPU; its engines are never loaded."""
    from ...backends.tensorrt import library
    from ...backends.tensorrt.backend import TensorrtBackend
    from ...backends.tensorrt.on_paper import PaperEngines
    from ...backends.tensorrt.worker import worker_for

    digits = target.arch.removeprefix("sm_").rstrip("a")
    capability = f"{digits[:-1]}.{digits[-1]}"
    engines = PaperEngines(library.load(), capability, worker_for(capability))
    return TensorrtBackend(device, engines)
