"""The numpy backend: the reference with which all others are compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np

from ...runtime.errors import FAILURES, TercetError, UnsupportedError
from ...runtime.ir.custom import Custom, run_custom
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.infer import infer
from ...runtime.ir.op import Op
from ...runtime.ir.types import Array, HostValue, TensorType
from ...runtime.ops.movement import Concat
from ...runtime.options import Options
from ...runtime.plan.backend import BuildContext, Claim, Decline, Weights
from ...runtime.plan.host import HOST, HostDevice
from ...runtime.plan.weights import WeightStore
from .engine.apply import call, call_elementwise, elementwise_claim, in_place, kernel_claim
from .engine.chain import Chain
from .engine.fitted import fitted
from .engine.fusion import chains
from .engine.node_alone import Call, NodeAlone, check
from .engine.registry import BUILDERS, JOINERS, KERNELS, ORDERS, Builder, PlainKernel
from .engine.step import HostStep
from .numerics import blas
from .numerics.elementwise import ELEMENTWISE
from .ops import provide

#: Options for nodes that run one by one.
_DEFAULTS = Options()


class NumpyBackend:
    """Runs nodes as numpy calls on contiguous host memory."""

    def __init__(self) -> None:
        self._alone: WeakKeyDictionary[Node, NodeAlone] = WeakKeyDictionary()

    @property
    def name(self) -> str:
        """``numpy``."""
        return "numpy"

    @property
    def device(self) -> HostDevice:
        """The host."""
        return HOST

    @property
    def kept_as(self) -> str:
        """See `runtime.plan.keeping.Keeping`: plans are kept if it takes no node of them."""
        return "numpy"

    def provide(self) -> None:
        """See `runtime.plan.keeping.Keeping`."""

    def claim(self, graph: Graph, free: Set[Node], options: Options) -> Iterator[Claim | Decline]:
        """Yield claims of fused nodes, then one for every single node."""
        kinds = dict.fromkeys(type(node.op) for node in graph.nodes if node in free)
        for kind in kinds:
            provide(kind)
        found = {chain.head: chain for chain in chains(graph, free)}
        fused = {node for chain in found.values() for node in chain.nodes}
        rest = [node for node in graph.nodes if node in free]
        found |= {node: Chain(node) for node in rest if node not in fused}
        for join in [JOINERS[kind] for kind in kinds if kind in JOINERS]:
            for together in join(graph, found, options):
                yield Claim(together.nodes, together.step, always=(together.output,))
                for chain in together.chains:
                    del found[chain.head]
        for chain in found.values():
            yield _claim(chain, options)

    def orders(self, node: Node) -> Iterable[tuple[Value, tuple[int, ...]]]:
        """Return the constants of a node that it reads in another order; see `Ordering`."""
        provide(type(node.op))
        found = ORDERS.get(type(node.op))
        return () if found is None else found(node)

    def evaluate(
        self, node: Node, values: Sequence[HostValue], weights: Weights
    ) -> Sequence[HostValue]:
        """Run one node on any values; see `Interpreter`."""
        alone = self._alone.get(node)
        if alone is None:
            alone = self._alone[node] = NodeAlone(_prepared(node.op))
        if isinstance(node.op, Concat):
            values = fitted(values, node.op.axis)
        laid_out = [_laid_out(value) for value in values]
        with np.errstate(all="ignore"):
            if not node.op.dense:
                return _run(node, alone, laid_out, weights)
            with blas.one_thread():
                return _run(node, alone, laid_out, weights)


def _claim(chain: Chain, options: Options) -> Claim | Decline:
    kind = type(chain.head.op)
    outputs = (value for node in chain.nodes for value in node.outputs)
    if kind in BUILDERS and not any(value.tensor.size for value in outputs):
        return Claim(chain.nodes, lambda site: HostStep("no elements", site, lambda bound: []))
    if kind in BUILDERS:
        built = BUILDERS[kind]
        build = partial(_build, built.function, chain, options)
        pairs = in_place(chain) if built.in_place else ()
        return Claim(chain.nodes, build, in_place=pairs, always=(chain.output,))
    if kind in ELEMENTWISE:
        return elementwise_claim(chain)
    if issubclass(kind, Custom):
        return kernel_claim(chain.head, _custom_kernel(chain.head))
    if found := KERNELS.get(kind):
        return kernel_claim(chain.head, found)
    return Decline(chain.head, f"no implementation of {chain.head.kind}")


def _custom_kernel(node: Node) -> PlainKernel:
    def run(op: Op, *arrays: Array | None) -> tuple[HostValue, ...]:
        return run_custom(node, arrays)

    return PlainKernel(run, writes=False, in_place=False)


def _build(
    builder: Builder, chain: Chain, options: Options, site: BuildContext
) -> HostStep | Decline:
    built = builder(chain, site, options)
    if isinstance(built, str):
        return Decline(chain.head, built)
    limit = options.workspace
    if limit is None or built.scratch <= limit:
        return built
    if built.own > limit:
        return Decline(chain.head, f"{built.own} bytes of workspace, over the limit of {limit}")
    return replace(built, workers=limit // built.own)


def evaluate(op: Op, inputs: Sequence[Array | None], count: int) -> list[Array] | None:
    """Evaluate one operator on arrays, for constant folding.

    Args:
        op: the operator.
        inputs: its inputs, None for omitted ones.
        count: number of outputs.

    Returns:
        New arrays, or None if the backend has no implementation, if the results are not
        tensors, or if the data are invalid.
    """
    graph = Graph(type(op).__name__)
    values = [None if data is None else graph.constant(data) for data in inputs]
    node = graph.insert(op, values, count)
    try:
        with np.errstate(all="ignore"), blas.one_thread():
            laid_out = [_laid_out(data) for data in inputs]
            found = _run(node, NodeAlone(_prepared(op)), laid_out, WeightStore(HOST))
    except (*FAILURES, MemoryError, TercetError):
        return None
    arrays = [data for data in found if isinstance(data, np.ndarray)]
    return arrays if len(arrays) == len(found) else None


def _laid_out(value: HostValue) -> HostValue:
    """Return an array in C order, as in plans: strides may affect the last bits of results."""
    if isinstance(value, np.ndarray) and not value.flags.c_contiguous:
        return value.copy("C")
    return value


def _run(
    node: Node, alone: NodeAlone, values: Sequence[HostValue], weights: Weights
) -> Sequence[HostValue]:
    types = alone.types(node, values)
    try:
        if alone.call is not None:
            return alone.call(values, types)[: len(node.outputs)]
        if type(node.op) in BUILDERS:
            arrays = [data if isinstance(data, np.ndarray) else None for data in values]
            return _run_built(node, arrays, weights)
    except FAILURES:
        if not isinstance(node.op, Custom):
            check(node, values)
        raise
    if isinstance(node.op, Custom):
        return run_custom(node, values)
    raise UnsupportedError(f"numpy has no implementation of {type(node.op).__name__}")


def _prepared(op: Op) -> Call | None:
    """Return the function that runs an operator alone, if it is one function for all inputs."""
    kind = type(op)
    provide(kind)
    if found := KERNELS.get(kind):
        return partial(call, op, found)
    if kind in ELEMENTWISE:
        return partial(call_elementwise, op, ELEMENTWISE[kind](op))
    return None


def _run_built(node: Node, arrays: Sequence[Array | None], weights: Weights) -> Sequence[HostValue]:
    """Build and run the step of a single-node graph."""
    graph = Graph(node.kind)
    values: list[Value | None] = []
    feeds: dict[Value, Array] = {}
    for i, (source, data) in enumerate(zip(node.inputs, arrays, strict=True)):
        if data is None:
            values.append(None)
        elif source is not None and source.is_constant:
            values.append(graph.constant(data))
        else:
            value = graph.add_input(f"x{i}", TensorType(data.dtype, data.shape))
            values.append(value)
            feeds[value] = data
    alone = graph.insert(node.op, values, len(node.outputs))
    infer(graph)
    results = [np.empty(value.tensor.dims, value.tensor.dtype) for value in alone.outputs]
    if not any(data.size for data in results):
        return results
    site = BuildContext((alone,), tuple(feeds), alone.outputs, {}, weights)
    step = _build(BUILDERS[type(node.op)].function, Chain(alone), _DEFAULTS, site)
    if isinstance(step, Decline):
        raise UnsupportedError(f"numpy declines {node.kind} {alone.signature()}: {step.reason}")
    scratch = HOST.upload(np.empty(step.scratch, np.uint8)) if step.scratch else None
    inputs = tuple(HOST.upload(data) for data in feeds.values())
    step.bind(inputs, tuple(map(HOST.upload, results)), scratch)(None)
    return results
