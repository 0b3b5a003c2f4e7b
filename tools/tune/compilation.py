"""Compilation of a model's kernels ahead of time, for a GPU that need not be present."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ...api import Loadable, Operators
from ...arguments import freezing, in_data_dir, public
from ...backends import open_backends, usable
from ...backends.numpy import evaluate
from ...runtime.base.arguments import dims as dim_texts
from ...runtime.base.arguments import shapes as shape_texts
from ...runtime.base.cache import Cache
from ...runtime.base.notebook import Shown
from ...runtime.control.program import Program
from ...runtime.errors import BackendUnavailable, UsageError
from ...runtime.options import Options
from ...runtime.session.model import Model
from ...runtime.session.program_cache import Optimised
from ..common.console import Say, announce_compiling, silent
from ..common.deadline import limited
from ..common.inputs import explained
from ..common.shapes import Dims, Shapes, assumed_dims, input_shapes
from ..common.views import shown
from ..export.writing import model_title
from ..inspect.paper import describe_target, needing_cuda_packages, target_of
from .algorithms import on_paper

if TYPE_CHECKING:
    from ...backends.cuda.recipe.targets import Target


@dataclass(frozen=True, slots=True, repr=False)
class Compilation(Shown):
    """The result of `compile`.

    Attributes:
        model: the file.
        target: the GPU.
        folder: the cache that has the machine code.
        kernels: number of kernels.
        compiled: number of those that the cache lacked.
        nbytes: bytes of the machine code of all.
        seconds: duration.
        later: names of nodes that are planned, or whose bodies are, when they first run, because
            only a run knows the shapes or what is decided; their kernels are compiled then.
    """

    model: str
    target: str
    folder: str
    kernels: int
    compiled: int
    nbytes: int
    seconds: float
    later: tuple[str, ...]

    def _about(self) -> str:
        return f"{self.model}: {self.kernels} kernels for {self.target}"

    def __str__(self) -> str:
        return shown(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return asdict(self)


@public()
@in_data_dir
@freezing
@limited
def compile(
    source: Loadable,
    *,
    target: str | None = None,
    fallback: str | None = None,
    precision: str = "float32",
    shapes: Shapes = (),
    dims: Dims = (),
    freeze: Mapping[str, Any] | None = None,
    operators: Operators | None = None,
    external_data_dir: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    say: Say = silent,
    **options: Any,
) -> Compilation:
    """Compile the kernels with which the cuda backend runs a model, and keep them in the cache.

    Options and sizes must be those of the run.

    Args:
        source: what `tercet.load` takes.
        target: a GPU that need not be present, such as ``sm_90a`` or ``sm_86:46`` (46
            multiprocessors); if None, the present one.
        fallback: backend for nodes that cuda declines.
        precision: compute precision of float32 tensors.
        shapes: input shapes by name: ``{"image": (1, 3, 224, 224)}``.
        dims: sizes of symbolic dimensions: ``{"batch": 4}``; 1 if not given.
        freeze: arrays by name for inputs that become constants; see `tercet.load`.
        operators: custom operators; see `tercet.load`.
        external_data_dir: the folder of the model's external data; its own if None.
        timeout: time limit in seconds; None for no limit.
        say: called with progress messages.
        **options: further fields of `Options`.

    Raises:
        BackendUnavailable: the packages for CUDA are missing, or there is neither target nor GPU.
        UsageError: the target is unknown, or the cache cannot be trusted or written.
        ModelError: the model cannot be read, or rejects these input shapes.
        UnsupportedError: no backend takes some nodes; lists each with the reasons.
        KernelError: a kernel does not compile.
    """
    texts = shape_texts("shapes", shapes), dim_texts("dims", dims)
    given = {"precision": precision, "operators": operators, **options}
    with on_paper_gpu(target, fallback, given, say) as gpu:
        model = gpu.load(source)
        with explained(assumed_dims(model.inputs, *texts)):
            program = model.prepare(input_shapes(model.inputs, *texts))
            return gpu.compilation(model_title(source), tuple(_later(program)))


class PaperGpu:
    """A GPU for which models are planned, and on which nothing runs.

    Args:
        target: see `compile`.
        fallback: see `compile`.
        given: options of `tercet.load`.
        say: called with progress messages.
        stack: closes the models.
    """

    def __init__(
        self,
        target: str | None,
        fallback: str | None,
        given: Mapping[str, Any],
        say: Say,
        stack: ExitStack,
    ) -> None:
        self._gpu = None if target is None else target_of(target)
        self._fallback, self._given, self._say, self._stack = fallback, given, say, stack
        self._begin = perf_counter()
        self._device: Any = None
        self._folder = ""

    def load(self, source: Loadable, *, whole_caches: bool = False) -> Model:
        """Return a model on it; its plans are compiled.

        Args:
            source: what `tercet.load` takes.
            whole_caches: see `tercet.load`.

        Raises:
            BackendUnavailable, UsageError, ModelError: see `compile`.
        """
        self._say("loading")
        given = {**self._given, "whole_caches": whole_caches}
        host, chosen = self._stack.enter_context(on_paper(source, given))
        chosen = replace(chosen, tune=False)  # measurements are of a GPU that is present
        if self._device is None:
            self._device, self._folder = _device(chosen, self._gpu), str(chosen.cache)
        if reason := Cache(chosen.cache / "cuda").refusal():
            raise UsageError(f"nothing would be kept: {reason}")
        from ...backends.cuda.backend import CudaBackend

        behind = ()
        if self._fallback is not None:
            behind = open_backends(self._fallback, usable(chosen, self._fallback))
        made = Optimised(host.graph, host.rewrites)
        about = replace(host.source, mapped=())  # the files stay open
        backends = (CudaBackend(self._device), *behind)
        model = Model(host.imported, backends, chosen, evaluate, about, made)
        announce_compiling(model, self._say)
        return self._stack.enter_context(model)

    def compilation(self, name: str, later: tuple[str, ...] = ()) -> Compilation:
        """Wait for the kernels of everything that was planned, and return what they are.

        Args:
            name: of the model.
            later: see `Compilation`.

        Raises:
            UsageError: the cache has not kept them.
            KernelError: a kernel does not compile.
        """
        compiler = self._device.compiler
        codes = compiler.finish()
        if lacking := compiler.lacking():
            raise UsageError(
                f"the cache {self._folder} has not kept {len(lacking)} of {len(codes)} "
                "kernels: can it be written, and is there room?"
            )
        return Compilation(
            model=name,
            target=describe_target(compiler.target),
            folder=self._folder,
            kernels=len(codes),
            compiled=compiler.statistics.compiled,
            nbytes=sum(map(len, codes)),
            seconds=perf_counter() - self._begin,
            later=later,
        )


@contextmanager
def on_paper_gpu(
    target: str | None, fallback: str | None, given: Mapping[str, Any], say: Say
) -> Iterator[PaperGpu]:
    """Yield a GPU that need not be present; its models are closed at the end; see `PaperGpu`."""
    with ExitStack() as stack:
        yield PaperGpu(target, fallback, given, say, stack)


def _later(program: Program) -> Iterator[str]:
    """Yield the names of nodes that are planned, or whose bodies are, when they first run."""
    for stage in program.stages:
        yield from (name for node in stage.nodes if node.op.graphs() for name in node.origin)
    if program.tail is not None:
        yield from (name for node in program.tail.graph.nodes for name in node.origin)


def _device(options: Options, gpu: Target | None) -> Any:
    """Return a device to plan for; see `PaperDevice`.

    Args:
        options: of the model.
        gpu: its GPU; the present one if None.
    """
    with needing_cuda_packages():
        from ...backends.cuda.device import open_device
        from ...backends.cuda.on_paper import PaperDevice
    if gpu is not None:
        return PaperDevice(gpu, options.cache)
    try:
        found = open_device(options.cache, ordinal=options.device)
    except BackendUnavailable as error:
        error.add_note("or give a target, such as sm_90a, to compile for a GPU that is not here")
        raise
    return PaperDevice(found.compiler.target, options.cache)
