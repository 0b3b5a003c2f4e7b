"""Who runs a node: the cuda kernels as rivals of cuDNN, and what the user says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tercet.backends import open_backends
from tercet.runtime.errors import UsageError
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph, Node
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Relu
from tercet.runtime.ops.norm import LayerNormalization
from tercet.runtime.ops.pool import MaxPool
from tercet.runtime.options import Options
from tercet.runtime.plan.backend import Claim, Decline
from tercet.runtime.plan.format import Format
from tercet.tools.workshop.convolution_cases import ConvolutionCase

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cudnn.arbitration import (
    Arbiter,
    BackendComparison,
    CudaTime,
    CudaTimer,
    signature,
)
from tercet.backends.cudnn.backend import CudnnBackend, survey
from tercet.backends.cudnn.choice import EngineChoice, EngineTask
from tercet.backends.cudnn.registry import NodeGroup

CASE = ConvolutionCase(
    Conv(pads=(1, 1, 1, 1)), (1, 64, 56, 56), (64, 64, 3, 3), bias=True, relu=True
)
CONTIGUOUS, CHANNELS_LAST = Format.CONTIGUOUS, Format.CHANNELS_LAST


class Fixed(CudaTimer):
    """Cuda kernels whose times are known by the operators of the nodes."""

    def __init__(
        self, times: Mapping[str, float], format: Format = CONTIGUOUS, change: float = 0.0
    ):
        self.times, self.format, self.cost = times, format, change

    def on(self, graph: Graph, free: Any, options: Options) -> Arbiter:
        return Arbiter(self, graph, options)

    def timed(self, graph: Graph, nodes: Sequence[Node], options: Options) -> CudaTime | None:
        time = self.times.get("+".join(node.kind for node in nodes))
        count = (
            len(nodes[0].distinct_reads)
            + 1
            - len([v for v in nodes[0].distinct_reads if v.is_constant])
        )
        return None if time is None else CudaTime(time, (self.format,) * count)

    def change(self, type_: TensorType, before: Format, after: Format) -> float:
        return self.cost if before is not after else 0.0


def pooled() -> tuple[Graph, NodeGroup]:
    """A convolution in the middle of other nodes, so that neither end of it is the caller's."""
    graph = Graph()
    x = graph.add_input("x", TensorType(float32, (1, 64, 56, 56)))
    w, b = (graph.constant(data, name) for data, name in zip(CASE.constants(), "wb", strict=True))
    y = graph.insert(Relu(), [x], name="before").output
    y = graph.insert(Conv(pads=(1, 1, 1, 1)), [y, w, b], name="conv").output
    y = graph.insert(MaxPool(kernel_shape=(2, 2)), [y], name="pool").output
    graph.set_outputs({"y": graph.insert(Relu(), [y], name="behind").output})
    infer(graph)
    found = survey(graph, frozenset(graph.nodes), Options())
    (conv,) = [w for w in found if isinstance(w, NodeGroup) and w.nodes[0].kind == "Conv"]
    return graph, conv


def test_the_faster_one_gets_the_nodes() -> None:
    graph, wanted = pooled()
    arbiter = Fixed({"Conv": 20.0}).on(graph, frozenset(), Options())
    won, lost = arbiter.meet(wanted, 19.0), arbiter.meet(wanted, 21.0)
    assert won is not None
    assert lost is not None
    assert won.lost == ""
    assert lost.lost == "cuda kernels: 20.0 us, cuDNN: 21.0 us"
    assert Fixed({}).on(graph, frozenset(), Options()).meet(wanted, 99.0) is None


def test_changes_of_format_count_for_the_kernel_that_needs_them() -> None:
    graph, wanted = pooled()
    comparison = (
        Fixed({"Conv": 20.0}, CHANNELS_LAST, 3.0)
        .on(graph, frozenset(), Options())
        .meet(wanted, 16.0)
    )
    assert comparison is not None
    assert comparison == BackendComparison(22.0, 20.0, 6.0)
    assert comparison.lost == (
        "cuda kernels: 20.0 us, cuDNN: 22.0 us, 6.0 us of them to change formats"
    )


def test_what_the_caller_feeds_and_gets_is_plain() -> None:
    graph = CASE.graph()
    (wanted,) = survey(graph, frozenset(graph.nodes), Options())
    assert isinstance(wanted, NodeGroup)
    timer = Fixed({"Conv+Relu": 20.0}, CHANNELS_LAST, 3.0)
    comparison = timer.on(graph, frozenset(), Options()).meet(wanted, 16.0)
    assert comparison == BackendComparison(10.0, 20.0, -6.0), "the cuda kernels have to change both"


def test_what_the_cuda_kernels_take_along_counts_for_both() -> None:
    graph, wanted = pooled()
    conv, pool = wanted.nodes[0], graph.nodes[2]
    timer = Fixed({"Conv+MaxPool": 20.0, "MaxPool": 5.0})
    arbiter = Arbiter(timer, graph, Options(), dict.fromkeys((conv, pool), (conv, pool)))
    assert arbiter.meet(wanted, 14.0) == BackendComparison(19.0, 20.0)
    assert arbiter.meet(wanted, 16.0) == BackendComparison(21.0, 20.0)


@pytest.mark.parametrize("outputs", [1, 3])
def test_what_others_read_of_nodes_is_part_of_their_signature(outputs: int) -> None:
    """The formats that are remembered are those of all that the nodes give."""
    graph = Graph()
    x = graph.add_input("x", TensorType(float32, (4, 64)))
    scale = graph.constant(np.ones(64, np.float32))
    node = graph.insert(LayerNormalization(), [x, scale], 3)
    graph.set_outputs({v.name: v for v in node.outputs[:outputs]})
    infer(graph)
    given = ", ".join(map(str, range(2, 2 + outputs)))
    assert signature(graph, [node]).endswith(f"; gives {given}")


class Device:
    """A GPU that is not asked for anything but to announce."""

    def __init__(self) -> None:
        self.compiler = self
        self.said: list[str] = []

    def announce(self, text: str) -> None:
        self.said.append(text)


class Known(CudnnBackend):
    """CuDNN that takes 25 us for everything."""

    def _chosen(self, task: EngineTask, *, tune: bool) -> EngineChoice:
        nothing: Any = None
        return EngineChoice(nothing, microseconds=25.0 if tune else None)


def claims(options: Options) -> list[Claim | Decline]:
    graph = CASE.graph()
    doubles: tuple[Any, ...] = (Device(), None, Fixed({"Conv+Relu": 20.0}))
    free = frozenset(graph.nodes)
    return list(Known(*doubles).prepare(graph, free, options).claim(graph, free, options))


def test_tuning_declines_what_the_cuda_kernels_are_faster_at() -> None:
    (untuned,) = claims(Options())
    assert isinstance(untuned, Claim)
    (declined,) = claims(Options(tune=True))
    assert isinstance(declined, Decline)
    assert declined.reason == "cuda kernels: 20.0 us, cuDNN: 25.0 us"


# ── what the user says ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("options", [{"algorithms": {"conv": "cudnn"}}, {"conv": "cudnn"}])
def test_cudnn_can_be_asked_for(options: dict[str, Any]) -> None:
    (forced,) = claims(Options(tune=True, **options))
    assert isinstance(forced, Claim), "also where the cuda kernels are faster"


@pytest.mark.parametrize("way", ["cuda", "fft", "fft,cudnn"])
def test_another_way_can_be_asked_for(way: str) -> None:
    declined, *others = claims(Options(algorithms={"Conv": way}))
    assert isinstance(declined, Decline)
    first = way.partition(",")[0]
    assert declined.reason == f"algorithm '{first}' is requested, which is not cuDNN's"
    assert not [other for other in others if isinstance(other, Claim) and "Conv" in str(other)]


def test_a_wrong_name_is_an_error() -> None:
    with pytest.raises(UsageError, match="there is no algorithm 'cudn'; did you mean 'cudnn'"):
        open_backends("numpy", Options(algorithms={"Conv": "cudn"}))


def test_the_cuda_backend_takes_its_own_choice() -> None:
    from tercet.backends.cuda.algorithms.registry import Setting
    from tercet.backends.cuda.recipe.targets import H200

    node = CASE.graph().nodes[0]
    setting = Setting(H200, Options(algorithms={"Conv": "cuda"}))
    assert setting.for_node(node).asked == ()
    mixed = Setting(H200, Options(algorithms={"Conv": "cuda,fft"}))
    assert mixed.for_node(node).asked == ("fft",)
