"""What a user may choose, built once and handed down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from .cache import default_cache
from .errors import UsageError, did_you_mean
from .op import OPERATORS

if TYPE_CHECKING:
    from .ir import Graph

Precision = Literal["float32", "tf32", "float16", "bfloat16"]
Control = Literal["device", "host"]
#: The names of the ways to convolve, and to multiply matrices, that the cuda backend has;
#: docs/algorithms.md describes them.
ALGORITHMS = (
    "naive",
    "naive_nhwc",
    "direct",
    "explicit_gemm",
    "implicit_gemm",
    "implicit_precomp_gemm",
    "gemm_1x1",
    "winograd_f2",
    "winograd_f4",
    "winograd_f2_nonfused",
    "winograd_f4_nonfused",
    "fft",
    "depthwise",
    "grouped",
    "tensor_cores",
    "half_sums",
    "gemv",
    "gemm",
    "gemm_naive",
    "gemm_blocked",
    "gemm_registers",
    "gemm_vectors",
)

#: Who runs a node of the cudnn backend, as a way: cuDNN whatever the cuda kernels would take, or
#: these by their own choice.
CUDNN, CUDA = "cudnn", "cuda"


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that decides how a model is optimised, planned and run.

    Attributes:
        precision: arithmetic of float32 tensors; float32 means no TF32 anywhere, tf32 allows it on
            a GPU and changes nothing on numpy, which has none; float16 and bfloat16 compute in half
            precision what bears it (see `passes.to_half`) and give float32.
        keep_float32: names of the file's nodes that stay float32 whatever the precision is;
            ``tercet bisect --tolerance`` finds them.
        stop_at: number of graph rewrites after which the passes stop; None for no limit.
        skip: names of graph passes that do not run.
        fold_bytes: greatest constant, in bytes, that folding may create.
        fold_total: bytes of all constants together that folding may create.
        finite: whether all numbers that the model meets are finite; then a product with weights
            that are zero may be left out, which hands on no NaN and no infinity any more.
        max_bytes: memory of the host that a plan, or one result, may take; what the machine has
            where None.
        workspace: greatest scratch memory of one step in bytes; None for no limit.
        tune: measure the ways to run convolutions and products, the backend's own and those of
            vendor libraries, and take the fastest instead of trusting estimates; what was measured
            is kept in `cache`, and without `tune` it is not looked at.
        max_plans: plans that a model keeps, one per set of input shapes.
        device: number of the GPU, among those that CUDA shows; the host has 0 alone.
        check_each: wait after every step, so that a fault names its node.
        lanes: rows of a plan that may run side by side on a device, where they leave some of it
            idle; 1 for one after the other.
        control: who decides on If, Loop and Scan: ``device`` for the device, in the middle of its
            recorded work, where it can and the bodies are work for it alone; ``host``.
        cache: folder for compiled kernels and measured choices, a path or its text.
        conv: the way to run every Conv: one of `ALGORITHMS` on the cuda backend, or several with
            commas between, of which each node takes the first that it can; a node that can take
            none is refused, with the reasons. On the cudnn backend ``cudnn`` and ``cuda`` say
            who runs it. On numpy, ``direct`` keeps it from Winograd's algorithm, whose rounding is
            a few times that of the products.
        algorithms: the same by the name of a node, or of an operator such as ``ConvTranspose``;
            a node's own entry counts more than that of its operator, and both more than `conv`.
        ranges: least, usual and greatest size by symbolic dimension: what a tensorrt engine serves,
            which without it is built for one set of shapes.
    """

    precision: Precision = "float32"
    keep_float32: tuple[str, ...] = ()
    stop_at: int | None = None
    skip: tuple[str, ...] = ()
    fold_bytes: int = 64 << 20
    fold_total: int = 256 << 20
    finite: bool = False
    max_bytes: int | None = None
    workspace: int | None = None
    tune: bool = False
    max_plans: int = 8
    device: int = 0
    check_each: bool = False
    lanes: int = 4
    control: Control = "device"
    cache: Path = field(default_factory=default_cache)
    conv: str | None = None
    algorithms: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    ranges: Mapping[str, tuple[int, int, int]] = field(
        default_factory=dict[str, tuple[int, int, int]], hash=False
    )

    def __post_init__(self) -> None:
        known = get_args(Precision)
        if self.precision not in known:
            hint = did_you_mean(self.precision, known)
            raise UsageError(f"precision '{self.precision}' is none of {', '.join(known)}{hint}")
        if self.control not in get_args(Control):
            raise UsageError(f"control '{self.control}' is none of {', '.join(get_args(Control))}")
        object.__setattr__(self, "cache", Path(self.cache))
        object.__setattr__(self, "keep_float32", tuple(self.keep_float32))
        object.__setattr__(self, "algorithms", dict(self.algorithms))
        if self.conv is not None:
            _check_ways("conv", self.conv)
        for node, ways in self.algorithms.items():
            _check_ways(f"the algorithm of '{node}',", ways)
        object.__setattr__(self, "ranges", {n: _range(n, r) for n, r in self.ranges.items()})
        for name in ("fold_bytes", "fold_total", "max_plans", "lanes"):
            if getattr(self, name) < (1 if name in ("max_plans", "lanes") else 0):
                raise UsageError(f"{name}={getattr(self, name)} is too small")
        if self.device < 0:
            raise UsageError(f"device={self.device} is no number of a GPU: they count from 0")
        if self.max_bytes is not None and self.max_bytes < 0:
            raise UsageError(f"max_bytes={self.max_bytes} is too small")

    def ways_for(self, operator: str, names: Iterable[str]) -> tuple[str, ...]:
        """Return the ways that the user wants for a node, best first; empty for the backend's own.

        Args:
            operator: the node's, such as ``Conv``.
            names: the node's name, and those of the nodes of the file that it stands for.
        """
        own = (self.algorithms[name] for name in (*names, operator) if name in self.algorithms)
        ways = next(own, self.conv if operator == "Conv" else None)
        return () if ways is None else tuple(ways.split(","))


def check_algorithms(graph: Graph, algorithms: Mapping[str, str]) -> None:
    """Raise UsageError for a name in `Options.algorithms` that no node of a file has.

    Names of operators are as good, whether the file has such nodes or not.
    """
    if not algorithms:
        return
    known = {name: None for node in graph.walk() for name in (node.name, *node.origin, node.kind)}
    known |= dict.fromkeys(name for _, name in OPERATORS)
    for name in algorithms:
        if name not in known:
            hint = did_you_mean(name, known)
            raise UsageError(f"algorithms: the model has no node '{name}'{hint}")


def _check_ways(title: str, ways: str) -> None:
    known = (*ALGORITHMS, CUDNN, CUDA)
    for way in ways.split(","):
        if way not in known:
            hint = did_you_mean(way, known)
            raise UsageError(f"{title} '{way}' is none of {', '.join(known)}{hint}")


def _range(name: str, sizes: tuple[int, int, int]) -> tuple[int, int, int]:
    """Check the sizes that a symbolic dimension may have."""
    if len(sizes) == 3:
        least, usual, most = map(int, sizes)
        if 1 <= least <= usual <= most:
            return least, usual, most
    raise UsageError(f"ranges: '{name}' is {sizes}; least, usual and greatest size are wanted")
