"""What studies share: small models, running and timing them on a GPU, and exact results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from math import inf, prod
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

from ...api import load
from ...backends import open_backends
from ...runtime.control.program import Program
from ...runtime.errors import UnsupportedError
from ...runtime.ir.dtypes import float32
from ...runtime.ir.graph import Value
from ...runtime.ir.types import Array, TensorType
from ...runtime.ops.matmul import MatMul
from ...runtime.options import Options
from ...runtime.plan.rows import Row
from ...runtime.session.model import Model
from ..common.console import Say, silent
from ..common.data_sheets import DATA_SHEETS
from ..common.roofline import Rates
from ..profile.device_time import device_times

if TYPE_CHECKING:
    from cuda.bindings.driver import CUkernel

    from ...backends.cuda.driver.streams import CudaStream

Dims = tuple[int, ...]

#: What the data sheet of an H200 promises: operations in a second by unit, and bytes.
H200 = DATA_SHEETS["sm_90a"]
PEAKS = {
    "float32": H200.float32,
    "3xTF32": H200.three_tf32,
    "tf32": H200.tf32,
    "float16": H200.float16,
}
BYTES = H200.memory
#: Pixels whose results are compared with float64.
SAMPLED = 256


def floor_seconds(flops: float, nbytes: float, unit: str = "float32") -> float:
    """Return the shortest possible time for this much compute and traffic by the data sheet."""
    return Rates(BYTES, PEAKS).floor({unit: flops}, nbytes).seconds


def apart_by(found: Array | None, other: Array | None) -> float:
    """Return the largest difference of two results, as a share of the largest element."""
    if found is None or other is None:
        return float("nan")
    a, b = found.astype(np.float64), other.astype(np.float64)
    return float(np.abs(a - b).max() / np.abs(a).max())


def is_same(found: Array | None, other: Array | None) -> bool:
    """Return whether two results are there, and equal element by element."""
    return found is not None and other is not None and np.array_equal(found, other)


# ── models ───────────────────────────────────────────────────────────────────────────────────────


def normal(*dims: int, seed: int = 0) -> Array:
    """Return normal numbers; of large arrays a million of them over and over."""
    count = prod(dims)
    numbers = np.random.default_rng(seed).standard_normal(min(count, 1_000_003), np.float32)
    return np.resize(numbers, count).reshape(dims)


def node_of(kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> NodeProto:
    """Return a node with the name of its result."""
    return helper.make_node(kind, inputs, [output], output, **attributes)


def model_of(
    nodes: Iterable[NodeProto],
    inputs: Mapping[str, Array],
    outputs: Iterable[str],
    constants: Mapping[str, Array],
    opset: int = 21,
) -> ModelProto:
    """Return a model that takes arrays like `inputs`."""
    kind = {name: helper.np_dtype_to_tensor_dtype(data.dtype) for name, data in inputs.items()}
    given = [
        helper.make_tensor_value_info(name, kind[name], data.shape) for name, data in inputs.items()
    ]
    found = [helper.make_tensor_value_info(name, kind[next(iter(kind))], None) for name in outputs]
    stored = [numpy_helper.from_array(data, name) for name, data in constants.items()]
    graph = helper.make_graph(list(nodes), "study", given, found, stored)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11 if opset > 22 else 10
    )


@dataclass(frozen=True, slots=True)
class StudiedConv:
    """A convolution of random numbers, without a bias.

    Attributes:
        x: the image, [n, c, h, w].
        filters: how many.
        kernel: side of the window.
        stride: along both axes.
        dtype: float32 or float16.
        last: whether image and result have channels last, at the ends of the model too.
    """

    x: Dims
    filters: int
    kernel: int
    stride: int = 1
    dtype: type = np.float32
    last: bool = False

    @property
    def title(self) -> str:
        """Its sizes: ``128x128x128, 3x3``: height, width and channels, filters after an arrow."""
        n, c, h, w = self.x
        batch = f"{n} x " if n > 1 else ""
        stride = f"/{self.stride}" if self.stride > 1 else ""
        return f"{batch}{h}x{w}x{c} → {self.filters}, {self.kernel}x{self.kernel}{stride}"

    @property
    def y(self) -> Dims:
        """The result's shape."""
        n, _, h, w = self.x
        return n, self.filters, *((size - 1) // self.stride + 1 for size in (h, w))

    @property
    def flops(self) -> int:
        """Two for each multiplication of the definition."""
        return 2 * prod(self.y) * self.x[1] * self.kernel**2

    @property
    def nbytes(self) -> int:
        """Bytes of image, filters and result."""
        elements = prod(self.x) + prod(self.y) + self.filters * self.x[1] * self.kernel**2
        return elements * np.dtype(self.dtype).itemsize

    @property
    def image(self) -> Array:
        """The numbers that are convolved."""
        return normal(*self.x).astype(self.dtype)

    @property
    def weights(self) -> Array:
        """The filters; results are about as large as what is read."""
        dims = (self.filters, self.x[1], self.kernel, self.kernel)
        scale = np.float32(prod(dims[1:]) ** -0.5)
        return (normal(*dims, seed=1) * scale).astype(self.dtype)

    @property
    def feeds(self) -> dict[str, Array]:
        """The input of its model."""
        image = self.image
        return {"x": np.ascontiguousarray(image.transpose(0, 2, 3, 1)) if self.last else image}

    def model(self, feeds: Mapping[str, Array]) -> ModelProto:
        """Return the model that takes `feeds`, arrays as its property gives them."""
        pad = self.kernel // 2
        how = {"pads": [pad] * 4, "strides": [self.stride] * 2}
        if not self.last:
            nodes = [node_of("Conv", ["x", "w"], "y", **how)]
        else:
            nodes = [
                node_of("Transpose", ["x"], "first", perm=[0, 3, 1, 2]),
                node_of("Conv", ["first", "w"], "then", **how),
                node_of("Transpose", ["then"], "y", perm=[0, 2, 3, 1]),
            ]
        return model_of(nodes, feeds, ["y"], {"w": self.weights})

    def error(self, found: Array | None) -> float | None:
        """Return the largest difference from float64 at some pixels, of the largest result.

        Corners are among them. None where there is no result.
        """
        if found is None:
            return None
        n, _, height, width = self.y
        rng = np.random.default_rng(2)
        places = rng.integers((n, height, width), size=(SAMPLED, 3))
        places[:4, 1:] = [
            (0, 0),
            (0, width - 1),
            (height - 1, 0),
            (height - 1, width - 1),
        ]
        pad, size = self.kernel // 2, self.kernel
        image = np.pad(self.image, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        corners = places * (1, self.stride, self.stride)
        windows = [image[i, :, r : r + size, c : c + size] for i, r, c in corners]
        weights = self.weights.astype(np.float64)
        exact = np.stack(windows).reshape(SAMPLED, -1) @ weights.reshape(self.filters, -1).T
        if self.last:
            found = found.transpose(0, 3, 1, 2)
        got = found[places[:, 0], :, places[:, 1], places[:, 2]].astype(np.float64)
        return float(np.abs(got - exact).max() / np.abs(exact).max())


# ── the GPU ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Taken:
    """How a model ran.

    Attributes:
        seconds: of the rows that were requested, called over and over.
        whole: the same of all rows.
        workspace: bytes of scratch memory of the step that wants most.
        kernels: what ran for the rows that were requested.
        formats: of their first input and their first result: ``NCHW`` or ``NHWC``.
        nbytes: bytes that all steps read and write, constants left out.
        steps: how many there are, without reformats.
        result: what came out, if it was wanted; else None.
    """

    seconds: float
    whole: float
    workspace: int
    kernels: str
    formats: tuple[str, str]
    nbytes: int
    steps: int
    result: Array | None = field(repr=False)

    @property
    def ms(self) -> float:
        """Milliseconds of the rows that were requested."""
        return 1e3 * self.seconds

    @property
    def us(self) -> float:
        """Microseconds of the rows that were requested."""
        return 1e6 * self.seconds


class Lab:
    """A GPU on which models are run and timed.

    Args:
        say: called with a description of each stage.

    Raises:
        BackendUnavailable: there is no GPU, or no packages for it.
    """

    def __init__(self, say: Say = silent) -> None:
        (backend,) = open_backends("cuda", Options())
        from ...backends.cuda.backend import CudaBackend

        if not isinstance(backend, CudaBackend):
            raise TypeError(f"{backend.name} is not the cuda backend")
        self.device = backend.device
        self.stream = self.device.stream()
        self.say = say

    def take(
        self,
        model: ModelProto,
        feeds: Mapping[str, Array],
        of: str = "",
        *,
        fetch: bool = True,
        between: tuple[str, ...] = (),
        **options: Any,
    ) -> Taken:
        """Run a model with inputs and results on the device, and time it.

        Args:
            model: what runs.
            feeds: its inputs.
            of: the operator whose rows count; all steps where empty.
            fetch: whether the result is wanted on the host.
            between: tensors that must be there after a run.
            **options: fields of `Options`.

        Raises:
            UnsupportedError: a way that was requested cannot be used.
        """
        with load(model, "cuda", **options) as loaded:
            shapes = {name: data.shape for name, data in feeds.items()}
            (last,) = (info.name for info in loaded.outputs)
            outputs = (*between, last)
            with loaded.bind(shapes, outputs) as bound:
                found = bound.run(feeds)[last]
                result = found.numpy() if fetch else None
            program = loaded.prepare(shapes, outputs, to="device")
            return self._taken(program, of, result)

    def _taken(self, program: Program, of: str, result: Array | None) -> Taken:
        rows = [row for row in program.rows if row.run is not None]
        steps = [row for row in rows if row.kind == "step"]
        own = [row for row in steps if not of or any(node.kind == of for node in row.nodes)]
        return Taken(
            seconds=self.seconds(own),
            whole=self.seconds(rows),
            workspace=max((row.step.scratch for row in steps if row.step is not None), default=0),
            kernels=", ".join(dict.fromkeys(row.kernel for row in own)),
            formats=(_order(own[0].inputs[0].format), _order(own[-1].outputs[0].format)),
            nbytes=sum(s.nbytes for row in steps for s in (*row.inputs, *row.outputs)),
            steps=len(steps),
            result=result,
        )

    def seconds(self, rows: Iterable[Row]) -> float:
        """Return what rows of a program take, one after the other, called over and over."""
        from ...backends.cuda.driver.clock import microseconds

        runs: list[Callable[[Any], None]] = [row.run for row in rows if row.run is not None]

        def run(stream: CudaStream) -> None:
            for one in runs:
                one(stream)

        return microseconds(self.device, run, self.stream) / 1e6

    def ways(
        self, model: ModelProto, feeds: Mapping[str, Array], ways: Iterable[str], **options: Any
    ) -> dict[str, Taken | str]:
        """Return how a convolution runs in several ways, or why it does not."""
        found: dict[str, Taken | str] = {}
        for way in ways:
            try:
                found[way] = self.take(model, feeds, "Conv", conv=way, **options)
            except UnsupportedError as error:
                found[way] = str(error).rpartition("cannot be used: ")[2].splitlines()[0]
        return found

    def tiles(self, side: int) -> Iterator[tuple[str, float]]:
        """Yield every tile of gemm with the microseconds of a product of square matrices."""
        from ...backends.cuda.algorithms.registry import RecipeContext, Setting
        from ...backends.cuda.gemm.tables.simt import SIMT
        from ...backends.cuda.ops.matmul import MATMUL
        from ...backends.cuda.recipe.operands import Tensor
        from ...backends.cuda.tuning.judge import DeviceJudge

        square = TensorType(float32, (side, side))
        y, a, b = (Tensor(Value(name, square)) for name in "yab")
        setting = Setting(self.device.compiler.target, Options())
        task = MATMUL.task(RecipeContext(MatMul(), y, (a, b), setting))
        way = MATMUL.named("gemm")
        if isinstance(task, str) or isinstance(way, str):
            raise UnsupportedError(f"{task}, {way}")
        candidates = [MATMUL.candidate(task, way, str(tile)) for tile in SIMT]
        judge = DeviceJudge(self.device)
        try:
            judge.prepare(candidates)
            judge.begin(task, candidates[0])
            for candidate in candidates:
                yield candidate.variant, judge.judge(candidate, inf)[0]
        finally:
            judge.end()

    def kernels(self, program: Program) -> list[dict[str, Any]]:
        """Return what the compiler made of every kernel of a program, each form of it once."""
        from ...backends.cuda.driver.step import KernelStep
        from ...backends.cuda.recipe.launch import MAX_THREADS

        steps = [row.step for row in program.rows if isinstance(row.step, KernelStep)]
        launches = [launch for step in steps for launch in step.launches]
        found: dict[Any, dict[str, Any]] = {}
        for launch in launches:
            key = launch.source, launch.block, launch.shared
            if key in found:
                found[key]["times"] += 1
                continue
            code = self.device.compiler.submit(launch.source).result()
            kernel = self.device.load(code, launch.entry, launch.shared)
            registers, own, spilled, blocks = self._made(kernel, launch.block, launch.shared)
            found[key] = {
                "kernel": launch.title,
                "times": 1,
                "threads": launch.block,
                "registers": registers,
                "shared": own + launch.shared,
                "spilled": spilled,
                "blocks": blocks,
                "occupancy": blocks * launch.block / MAX_THREADS,
            }
        return list(found.values())

    def _made(self, kernel: CUkernel, threads: int, shared: int) -> tuple[int, ...]:
        """Return the registers, own shared memory and spilled bytes of a kernel.

        The fourth number is that of its blocks on a multiprocessor.
        """
        from cuda.bindings import driver

        from ...backends.cuda.driver.status import check

        asked, call = driver.CUfunction_attribute, "reading what was compiled"
        device = driver.CUdevice(self.device.ordinal)
        numbers = (
            check(call, driver.cuKernelGetAttribute(each, kernel, device))
            for each in (
                asked.CU_FUNC_ATTRIBUTE_NUM_REGS,
                asked.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
                asked.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
            )
        )
        function = check(call, driver.cuKernelGetFunction(kernel))
        answer = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, shared)
        return (*numbers, check(call, answer))

    def network(self, model: Model, feeds: Mapping[str, Array]) -> float:
        """Return the median seconds of a whole model on the device, as one graph."""
        shapes = {name: data.shape for name, data in feeds.items()}
        with model.bind(shapes) as bound:
            bound.run(feeds)
        times = device_times(model, model.prepare(shapes, to="device"))
        return float("nan") if times is None else times.median


# ── beside ───────────────────────────────────────────────────────────────────────────────────────


def pytorch() -> Any:
    """Return PyTorch, which brings the vendor's libraries; None where it is not installed."""
    return None if find_spec("torch") is None else import_module("torch")


def pytorch_seconds(torch: Any, call: Callable[[], object], calls: int = 20) -> float:
    """Return the median seconds of a call of PyTorch, of as many in one CUDA graph."""
    for _ in range(3):
        call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    graph.replay()
    found: list[float] = []
    for _ in range(5):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / 1e3 / calls)
    return median(found)


def _order(format: Any) -> str:
    return "NHWC" if format.value.startswith("channels") else "NCHW"
