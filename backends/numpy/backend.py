"""The reference backend: what every other one is held against, on the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from functools import partial

import numpy as np

from ...runtime.backend import Claim, Decline, Site
from ...runtime.errors import TercetError
from ...runtime.host import HOST, HostDevice
from ...runtime.infer import infer
from ...runtime.ir import Graph, Node
from ...runtime.op import Op
from ...runtime.options import Options
from ...runtime.types import Array, TensorType
from ...runtime.weights import WeightStore
from .apply import call, call_elementwise, elementwise_claim, in_place, kernel_claim
from .chain import Chain
from .elementwise import ELEMENTWISE
from .fuse import chains
from .registry import BUILDERS, KERNELS, Builder
from .step import HostStep


class NumpyBackend:
    """Runs nodes as numpy calls on the host's memory, in the plain format."""

    @property
    def name(self) -> str:
        """``numpy``."""
        return "numpy"

    @property
    def device(self) -> HostDevice:
        """The host."""
        return HOST

    def claim(self, graph: Graph, free: Set[Node], options: Options) -> Iterator[Claim | Decline]:
        """Yield claims of several nodes each, then one of every node by itself."""
        for chain in chains(graph, free):
            yield _claim(chain, options)
        for node in graph.nodes:
            if node in free:
                yield _claim(Chain(node), options)


def _claim(chain: Chain, options: Options) -> Claim | Decline:
    kind = type(chain.head.op)
    if kind in BUILDERS and not any(v.tensor.size for v in chain.nodes[-1].outputs):
        return Claim(chain.nodes, lambda site: HostStep("no elements", site, lambda bound: []))
    if kind in BUILDERS:
        built = BUILDERS[kind]
        build = partial(_build, built.function, chain, options)
        return Claim(chain.nodes, build, in_place=in_place(chain) if built.in_place else ())
    if kind in ELEMENTWISE:
        return elementwise_claim(chain)
    if kind in KERNELS:
        return kernel_claim(chain.head, KERNELS[kind])
    return Decline(chain.head, f"no implementation of {chain.head.kind}")


def _build(builder: Builder, chain: Chain, options: Options, site: Site) -> HostStep | Decline:
    built = builder(chain, site, options)
    if isinstance(built, str):
        return Decline(chain.head, built)
    limit = options.workspace
    if limit is not None and built.scratch > limit:
        return Decline(chain.head, f"{built.scratch} bytes of workspace, over the limit of {limit}")
    return built


def evaluate(op: Op, inputs: Sequence[Array | None], count: int) -> list[Array] | None:
    """Run one operator on arrays.

    Args:
        op: the operator.
        inputs: its inputs, None where one is left out.
        count: number of outputs wanted.

    Returns:
        New arrays, or None where the backend has no implementation or the data make no sense.
    """
    arrays = list(inputs)
    kind = type(op)
    try:
        with np.errstate(all="ignore"):
            if kind in ELEMENTWISE:
                return list(call_elementwise(op, arrays))
            if kind in KERNELS:
                return list(call(op, KERNELS[kind], arrays)[:count])
            return _evaluate_built(op, arrays, count) if kind in BUILDERS else None
    except (ArithmeticError, IndexError, TercetError, ValueError):
        return None


def _evaluate_built(op: Op, arrays: list[Array | None], count: int) -> list[Array] | None:
    """Build the one step of a graph of one node, and play it."""
    graph = Graph(type(op).__name__)
    feeds = {
        graph.add_input(f"x{i}", TensorType(data.dtype, data.shape)): data
        for i, data in enumerate(arrays)
        if data is not None
    }
    names = iter(feeds)
    node = graph.insert(op, [None if data is None else next(names) for data in arrays], count)
    infer(graph)
    results = [np.empty(value.tensor.dims, value.tensor.dtype) for value in node.outputs]
    site = Site((node,), tuple(feeds), node.outputs, {}, WeightStore(HOST))
    step = _build(BUILDERS[type(op)].function, Chain(node), Options(), site)
    if isinstance(step, Decline):
        return None
    scratch = HOST.upload(np.empty(step.scratch, np.uint8)) if step.scratch else None
    inputs = tuple(HOST.upload(data) for data in feeds.values())
    step.bind(inputs, tuple(map(HOST.upload, results)), scratch)(None)
    return results
