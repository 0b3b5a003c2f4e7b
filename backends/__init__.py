"""Where nodes run: each backend claims nodes of a `Graph` and builds steps for them.

A backend is a module with a function ``open_backends(options) -> tuple[Backend, ...]``: the backend
itself, then those that take on the same device what it leaves over. It raises `BackendUnavailable`
where it cannot run. The module may also define ``OPTIONS``, a frozen dataclass of the backend's own
options, which `Options.of_backend` returns, ``ALGORITHMS``, the names that `Options.conv` and
`Options.algorithms` may ask it for (a dict maps each to the operators that have it, or to None for
all), ``USES``, which options of `PARTIAL` it uses, and ``tf32`` if it has that precision, and
``INTEGERS``, the `IntegerChoice` of layers that it computes faster on integers, ``WIDENS``, whether
it is faster where floats of 16 bits are kept in float32, and ``PACKS``, whether it reads packed
weights of a few bits. What a backend opens behind it counts as its own. Other packages add backends
through the entry point group ``tercet.backends``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial, wraps
from importlib import import_module
from traceback import walk_tb
from typing import TYPE_CHECKING

from ..runtime.base.arguments import unfit
from ..runtime.errors import BackendUnavailable, TercetError, UsageError, did_you_mean
from ..runtime.ir.graph import Graph
from ..runtime.options import Options
from ..runtime.plan.backend import Backend
from ..runtime.plan.contract import backends_of
from ..runtime.plan.host import HOST
from .options import (
    PACKING,
    TF32,
    check_algorithms,
    check_nodes,
    check_used,
    integers_of,
    packs,
    widens,
    with_own,
)
from .options import usable as _usable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: Names of runtimes that tools run beside backends.
_RUNNERS = ("onnxruntime", "onnx.reference")
_OWN = {
    "numpy": ".numpy",
    "cuda": ".cuda",
    "cudnn": ".cudnn",
    "tensorrt": ".tensorrt",
    "openvino": ".openvino",
}
#: What people, and other runtimes' providers, call backends and runners.
_CALLED = {
    "cpu": "numpy",
    "gpu": "cuda",
    "trt": "tensorrt",
    "ort": "onnxruntime",
    "reference": "onnx.reference",
}
#: Those that run on the driver of NVIDIA's GPUs.
_ON_GPUS = ("cuda", "cudnn", "tensorrt")

Opener = Callable[[Options], tuple[Backend, ...]]
#: The entry point group of other packages' backends.
GROUP = "tercet.backends"


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a backend can run on this machine.

    Attributes:
        name: the backend.
        device: such as ``cpu`` or ``cuda:0 NVIDIA H200``; empty where it cannot run.
        missing: what is missing, empty where nothing is.
        remedy: the command or step that fixes it.
    """

    name: str
    device: str = ""
    missing: str = ""
    remedy: str = ""

    def __bool__(self) -> bool:
        return not self.missing


def names() -> tuple[str, ...]:
    """Return the names of all backends, tercet's own first, whether they can run here or not."""
    return (*_OWN, *(name for name in _foreign() if name not in _OWN))


def is_own(name: str) -> bool:
    """Whether a name is that of a backend of this package."""
    return name in _OWN


def _is_backend(name: str) -> bool:
    """Whether there is a backend of this name; other packages are looked through last."""
    return name in _OWN or name in _foreign()


@cache
def _foreign() -> dict[str, Callable[[], Opener]]:
    """Return what imports the backends of other packages, by name."""
    return {point.name: partial(_imported, point) for point in _points()}


def _points() -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points  # imports much that tercet does not need

    return entry_points(group=GROUP)


@cache
def _imported(point: EntryPoint) -> Opener:
    """Return the function of another package; if that fails, only this backend is unavailable."""

    # What another package raises as it is imported or opened may be anything.
    def failed(error: Exception) -> BackendUnavailable:
        remedy = f"that is an error of {_package(point)}, not of tercet: repair or uninstall it"
        return BackendUnavailable(point.name, f"{type(error).__name__}: {error}", remedy)

    try:
        opener: Opener = point.load()
    except Exception as error:
        reason = error

        def unavailable(options: Options) -> tuple[Backend, ...]:
            raise failed(reason) from reason

        return unavailable

    @wraps(opener)
    def guarded(options: Options) -> tuple[Backend, ...]:
        try:
            return backends_of(opener(options))
        except TercetError:
            raise
        except Exception as error:
            raise failed(error) from error

    return guarded


def _package(point: EntryPoint) -> str:
    return point.module if point.dist is None else f"{point.dist.name} {point.dist.version}"


def blamed(error: BaseException) -> str:
    """Return which backend of another package raised an error, and where; empty if none did."""
    packages = {point.module.partition(".")[0]: point for point in _points()}
    for frame, line in reversed(list(walk_tb(error.__traceback__))):
        module = str(frame.f_globals.get("__name__", ""))
        point = packages.get(module.partition(".")[0])
        if point is not None:
            return f"backend '{point.name}' of {_package(point)}, {module}, line {line}"
    return ""


def begin(
    name: str | Sequence[str], options: Options, fallback: str | Sequence[str] | None = None
) -> None:
    """Start what backends will need, on other threads; what fails says so when they are opened.

    Args:
        name: see `open_backends`.
        options: see `open_backends`.
        fallback: see `open_backends`.
    """
    for each in _in_order(name, fallback):
        if each in _ON_GPUS:
            from .cuda.driver.wake import wake

            wake(options.device)


def settled(
    options: Options, name: str | Sequence[str], fallback: str | Sequence[str] | None = None
) -> Options:
    """Return the options with what the user leaves to backends.

    That is `Options.integers`, `Options.widen` and whether weights of a few bits are packed, for
    the first one to decide, and TF32, where none has it.

    Args:
        options: the user's.
        name: see `open_backends`.
        fallback: see `open_backends`.
    """
    order = _in_order(name, fallback)
    if options.precision == TF32 and all(map(_is_backend, order)):
        options = replace(options, precision=usable(options, order).precision)
    first = _opener(order[0]) if _is_backend(order[0]) else None
    if options.integers is None:
        options = replace(options, integers=integers_of(first) if first else False)
    if options.widen is None:
        options = replace(options, widen=widens(first) if first else False)
    if first and not packs(first) and PACKING not in options.skip:
        options = replace(options, skip=(*options.skip, PACKING))
    return options


def usable(
    options: Options, name: str | Sequence[str], fallback: str | Sequence[str] | None = None
) -> Options:
    """Return the options with the defaults for what these backends cannot use.

    Args:
        options: those of several runners, say.
        name: see `open_backends`.
        fallback: see `open_backends`.
    """
    return _usable(options, {each: _opener(each) for each in _in_order(name, fallback)})


def check_options(
    options: Options, name: str | Sequence[str], fallback: str | Sequence[str] | None = None
) -> None:
    """Raise UsageError for an option that none of these backends can use.

    Args:
        options: the user's.
        name: see `open_backends`; may be empty.
        fallback: see `open_backends`.
    """
    if options.conv is not None or options.algorithms:
        check_algorithms(options, map(_opener, names()))
    for own in options.backend_options:
        options = with_own(options, own, _opener(own))
    chain = {each: _opener(each) for each in _in_order(name, fallback)}
    check_used(options, chain, lambda: {each: _opener(each) for each in names()})


def check_algorithms_of_nodes(options: Options, *graphs: Graph) -> None:
    """Raise UsageError for a node in `Options.algorithms` that is missing, or lacks the algorithm.

    Args:
        options: the user's.
        graphs: the graph as imported, and what the passes have made of it.
    """
    if options.algorithms:
        check_nodes(options, graphs, map(_opener, names()))


def _in_order(name: str | Sequence[str], fallback: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of backends in the order in which they are asked."""
    first = (name,) if isinstance(name, str) else name
    return *first, *((fallback,) if isinstance(fallback, str) else fallback or ())


def open_backends(
    name: str | Sequence[str], options: Options, fallback: str | Sequence[str] | None = None
) -> tuple[Backend, ...]:
    """Return the backend of this name with those after it.

    Args:
        name: one of `names`, or several, the first of which is asked first.
        options: handed to the backend.
        fallback: the name of a backend for the nodes that all others decline, or several.

    Raises:
        UsageError: there is no such backend, option or algorithm, or all backends run on the
            host and `options.device` selects a GPU.
        BackendUnavailable: it cannot run on this machine.
    """
    first, *others = _in_order(name, fallback)
    if options.conv is not None or options.algorithms:
        check_algorithms(options, map(_opener, names()))
    for own in options.backend_options:
        options = with_own(options, own, _opener(own))
    found = list(_opener(first)(options))
    for other in others:
        have = {backend.name for backend in found}
        found.extend(b for b in _opener(other)(options) if b.name not in have)
    if options.device and all(backend.device is HOST for backend in found):
        reason = f"backend '{first}' runs on the host; the option is for GPUs"
        raise unfit(UsageError, "device", reason, options.device)
    return tuple(found)


def _opener(name: str) -> Opener:
    if name in _OWN:
        return import_module(_OWN[name], __package__).open_backends
    if name in _foreign():
        return _foreign()[name]()
    if name in _RUNNERS:
        raise _unknown(name, "; that is another runtime, which compare, bisect and bench run")
    raise _unknown(name, meant(name, names()))


def check_name(name: str) -> None:
    """Raise UsageError if there is no backend of this name, whether it can run here or not."""
    if not _is_backend(name):
        raise _unknown(name, meant(name, names()))


def meant(name: str, known: Iterable[str]) -> str:
    """Return a hint like that of `did_you_mean`, also for what others call a backend."""
    word = name.lower().removesuffix("executionprovider")
    return did_you_mean(_CALLED.get(word, word), known)


def _unknown(name: str, hint: str) -> UsageError:
    return UsageError(f"there is no backend '{name}'{hint} (backends: {', '.join(names())})")


def available(options: Options | None = None) -> tuple[Availability, ...]:
    """Return for every backend whether it can run here, and if not, what is missing."""
    return tuple(availability(name, options) for name in names())


def availability(name: str, options: Options | None = None) -> Availability:
    """Return whether a backend can run here, and if not, what is missing."""
    try:
        backends = open_backends(name, options or Options())
    except BackendUnavailable as error:
        return Availability(name, "", error.missing, error.remedy)
    return Availability(name, backends[0].device.name)
