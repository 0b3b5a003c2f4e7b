"""The options of a model, validated on construction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

from .base import arguments
from .base.arguments import Rule
from .base.cache import default_cache
from .errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from .passes.driver import IntegerChoice

T = TypeVar("T")

Precision = Literal["float32", "tf32", "float16", "bfloat16"]
Control = Literal["device", "host"]

#: Half precisions: their infinities and NaN may be finite in float32.
NARROW = ("float16", "bfloat16")


@arguments.checked_fields
@dataclass(frozen=True, slots=True)
class Options:
    """How a model is optimised, planned and run.

    Attributes:
        precision: compute precision of float32 tensors. float32 means no TF32; tf32 allows it on a
            GPU and is float32 on numpy; float16 and bfloat16 run the operations that tolerate
            it in half precision (see `passes.half.to_half`), with float32 inputs and outputs.
        keep_float32: names of nodes of the file that stay in float32 at any precision;
            ``tercet bisect --tolerance`` finds them.
        stop_at: number of graph rewrites after which the passes stop; None for no limit.
        skip: names of graph passes to skip.
        fold_bytes: limit in bytes of each constant that folding creates.
        fold_total: limit in bytes of all constants together that folding creates, less those that
            they replace.
        keep_quantized: leave the DequantizeLinear of constants in the graph, so that weights stay
            the integers that the file has; `export` and `simplify` write them so.
        integers: compute layers of quantized tensors on their integers, as onnxruntime does, rather
            than as layers of floats between conversions (see the pass `multiply_integers`): True
            for all that onnxruntime's optimiser makes layers of integers, False for none, and None
            for those that the first backend computes faster, by ``INTEGERS`` of its module.
        widen: keep floats of 16 bits in float32 between operations, without rounding them, as
            onnxruntime does on a CPU (see `passes.half.widen_halves`), unless `precision` is one of
            16 bits, rewrites are stopped, or widened weights exceed `fold_total`: True or False,
            and None for what the first backend computes faster, by ``WIDENS`` of its module.
        finite: assume that all values are finite: products with zero weights may be removed, which
            then no longer propagate NaN and infinity.
        max_bytes: limit of the model's host memory in bytes: plans, results and packed weights
            together; if None, 7/8 of the memory of the machine or its container.
        max_device_bytes: limit of the model's memory on a GPU in bytes: plans with their scratch
            memory, and weights. A decoder's caches, results that a caller holds, and what
            libraries take themselves are not counted. None for no limit.
        workspace: maximum scratch memory of one step in bytes; None for no limit.
        tune: measure the algorithms for convolutions and products, the backend's own and those of
            vendor libraries, and use the fastest instead of relying on estimates. Measurements
            are kept in `cache`, which is not read without `tune`.
        max_plans: number of plans that a model keeps, one per set of input shapes.
        device: index of the GPU, as CUDA counts them; the host has only 0.
        check_each: synchronize after every step, so that a device fault names its node. Each step
            is then an NVTX range with the names of its nodes if the package ``nvtx`` is installed.
        streams: maximum number of device streams on which rows of a plan run concurrently where one
            alone does not fill the device; 1 for sequential execution.
        control: where If, Loop and Scan are decided: ``device`` for the device, inside its recorded
            work, if it can and the bodies need no host; ``host`` for the host.
        cache: folder for compiled kernels, plans and tuning results.
        conv: the algorithm of every Conv: one of the ``ALGORITHMS`` of a backend's module, or
            several separated by commas, of which each node takes the first that it can use; a node
            that can use none is refused, with the reasons.
        algorithms: the same by name of a node, or of an operator such as ``ConvTranspose``; an
            entry for a node overrides that for its operator, and both override `conv`.
        ranges: minimum, typical and maximum size by symbolic dimension, for which backends that
            compile regions build one engine; without it they build one per set of shapes.
        backend_options: options of single backends by backend name: a dict, or an instance of the
            frozen dataclass ``OPTIONS`` of its module, such as ``{"openvino": {"min_nodes": 2}}``;
            unknown options are rejected when the backend is opened.
    """

    precision: Precision = "float32"
    keep_float32: tuple[str, ...] = ()
    stop_at: int | None = None
    skip: tuple[str, ...] = ()
    fold_bytes: int = 64 << 20
    fold_total: int = 256 << 20
    keep_quantized: bool = False
    integers: bool | IntegerChoice | None = None
    widen: bool | None = None
    finite: bool = False
    max_bytes: int | None = None
    max_device_bytes: int | None = None
    workspace: int | None = None
    tune: bool = False
    max_plans: int = 8
    device: int = 0
    check_each: bool = False
    streams: int = 4
    control: Control = "device"
    cache: Path = field(default_factory=default_cache)
    conv: str | None = None
    algorithms: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    ranges: Mapping[str, tuple[int, int, int]] = field(
        default_factory=dict[str, tuple[int, int, int]], hash=False
    )
    backend_options: Mapping[str, object] = field(default_factory=dict[str, object], hash=False)

    def __post_init__(self) -> None:
        for name, rule in OPTION_RULES.items():
            object.__setattr__(self, name, rule(name, getattr(self, name)))

    @property
    def widens(self) -> bool:
        """Whether floats of 16 bits are kept in float32; False where `widen` is None."""
        is_rounded = self.precision in ("float16", "bfloat16") or self.stop_at is not None
        return bool(self.widen) and not is_rounded

    def of_backend(self, name: str, kind: type[T]) -> T:
        """Return the options of one backend: the user's, or the defaults of `kind`.

        Args:
            name: the backend.
            kind: its frozen dataclass.
        """
        found = self.backend_options.get(name)
        return found if isinstance(found, kind) else kind()

    def algorithms_for(self, operator: str, names: Iterable[str]) -> tuple[str, ...]:
        """Return the algorithms requested for a node in order of preference; empty for any.

        Args:
            operator: the node's, such as ``Conv``.
            names: the node's name and origins.
        """
        own = (self.algorithms[name] for name in (*names, operator) if name in self.algorithms)
        found = next(own, self.conv if operator == "Conv" else None)
        return () if found is None else tuple(found.split(","))


# ── rules ────────────────────────────────────────────────────────────────────────────────────────


def _algorithms(name: str, value: Any) -> str:
    """Accept names of algorithms, separated by commas or in a list; backends check them."""
    return value if isinstance(value, str) else ",".join(arguments.words("algorithms")(name, value))


def _passes(name: str, value: Any) -> tuple[str, ...]:
    """Accept names of graph passes."""
    found: tuple[str, ...] = arguments.words("names of graph passes")(name, value)
    if found:
        from .passes import STATIC_PASSES, SYMBOLIC_PASSES

        known = sorted({each.name for each in (*SYMBOLIC_PASSES, *STATIC_PASSES)})
        for each in found:
            if each not in known:
                hint = did_you_mean(each, known)
                where = "`tercet inspect MODEL --passes` lists those that rewrite a model"
                reason = f"there is no pass '{each}'{hint or f'; {where}'}"
                raise arguments.unfit(UsageError, name, reason)
    return found


def _integers(name: str, value: Any) -> bool | IntegerChoice | None:
    """Accept a flag, or what chooses layers for a backend."""
    return cast(Any, value) if callable(value) else arguments.optional(arguments.flag)(name, value)


def _range(name: str, value: Any) -> tuple[int, int, int]:
    """Accept the sizes that a symbolic dimension may have."""
    expected = "minimum, usual and maximum size, such as (1, 8, 32)"
    sizes = arguments.items(name, value, expected)
    if len(sizes) == 3:
        minimum, usual, maximum = (arguments.whole(1)(name, size) for size in sizes)
        if minimum <= usual <= maximum:
            return minimum, usual, maximum
    raise arguments.refused(name, cast("object", value), expected)


#: The rule of each field of `Options`.
OPTION_RULES: Mapping[str, Rule] = {
    "precision": arguments.one_of(*get_args(Precision)),
    "keep_float32": arguments.words("names of nodes"),
    "stop_at": arguments.optional(arguments.whole(0)),
    "skip": _passes,
    "fold_bytes": arguments.nbytes,
    "fold_total": arguments.nbytes,
    "keep_quantized": arguments.flag,
    "integers": _integers,
    "widen": arguments.optional(arguments.flag),
    "finite": arguments.flag,
    "max_bytes": arguments.optional(arguments.nbytes),
    "max_device_bytes": arguments.optional(arguments.nbytes),
    "workspace": arguments.optional(arguments.nbytes),
    "tune": arguments.flag,
    "max_plans": arguments.whole(1),
    "device": arguments.whole(0),
    "check_each": arguments.flag,
    "streams": arguments.whole(1),
    "control": arguments.one_of(*get_args(Control)),
    "cache": arguments.path,
    "conv": arguments.optional(_algorithms),
    "algorithms": arguments.mapping(
        "algorithms by node or operator, such as {'Conv': 'fft'}", value=_algorithms
    ),
    "ranges": arguments.mapping("sizes by symbolic dimension", value=_range),
    "backend_options": arguments.mapping("options by name of a backend"),
}
