"""The part of an epilogue that does not fit into cuDNN's graph, run by a cuda kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ...runtime.ir.graph import Graph, Value
from ...runtime.ir.infer import infer
from ...runtime.ir.types import TensorType
from ..cuda.codegen.chain_kernel import elementwise
from ..cuda.codegen.elementwise import chain_of
from ..cuda.device import CudaDevice
from ..cuda.driver.step import bind_launch
from ..cuda.driver.streams import CudaStream
from ..cuda.recipe.launch import Launch
from ..cuda.recipe.operands import Tensor
from .operation import Operand
from .stages import FLOW, Input, Tail


def rest_launch(tail: Tail, role: str, result: Operand) -> tuple[Launch, dict[str, str]]:
    """Return the launch of the kernel that applies a tail to a result, in place.

    Args:
        tail: the stages to apply, not empty.
        role: of the result.
        result: its layout.

    Returns:
        The kernel, and the role of each of its pointers by name.
    """
    graph = Graph("epilogue")
    operands = {role: result, **dict(tail.operands)}
    values = {r: graph.add_input(r, TensorType(o.dtype, o.dims)) for r, o in operands.items()}
    roles = {value: r for r, value in values.items()}
    flow = values[role]

    def value_of(given: Input) -> Value | None:
        if given is None:
            return None
        if isinstance(given, str):
            return flow if given == FLOW else values[given]
        return graph.constant(np.asarray(given, result.dtype))

    for stage in tail.stages:
        flow = graph.insert(stage.op, [value_of(given) for given in stage.inputs]).output
    roles[flow] = role
    infer(graph)
    chain = chain_of(graph.nodes)
    if isinstance(chain, str):
        raise TypeError(f"{tail} has no kernel: {chain}")

    def tensor(value: Value) -> Tensor:
        return Tensor(value, *operands[roles[value]].layout)

    launch = elementwise(chain, tensor(flow), [tensor(value) for value in chain.operands])
    given = launch.arguments.items()
    places = {name: roles[a.value] for name, a in given if isinstance(a, Tensor)}
    return launch, places


def rest_kernel(
    device: CudaDevice, tail: Tail, role: str, result: Operand, at: Mapping[str, int]
) -> Callable[[CudaStream], None]:
    """Return a function that applies a tail to a result; see `rest_launch`.

    Args:
        device: the GPU.
        tail: the stages to apply.
        role: of the result.
        result: its layout.
        at: address by role.
    """
    launch, places = rest_launch(tail, role, result)
    code = device.compiler.submit(launch.source)
    return bind_launch(device, launch, code, {name: at[r] for name, r in places.items()})
