"""What follows a convolution, as one of the cuda backend's kernels where cuDNN does not fuse it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...runtime.backend import Format
from ...runtime.dtypes import float32
from ...runtime.infer import infer
from ...runtime.ir import Graph, Value
from ...runtime.ops.elementwise import Add, Relu
from ...runtime.types import TensorType
from ..cuda.device import CudaDevice, CudaStream
from ..cuda.elementwise import chain_of, elementwise
from ..cuda.launch import Launch, Tensor, bound
from .conv import Convolution, Epilogue
from .graph import Role


def epilogue_launch(convolution: Convolution, epilogue: Epilogue) -> tuple[Launch, dict[int, Role]]:
    """Return the kernel that applies an epilogue to a convolution's result, in place.

    Args:
        convolution: what gave the result.
        epilogue: what is left to do, not empty.

    Returns:
        The kernel, and the role of each of its pointers by position.
    """
    graph = Graph("epilogue")
    roles: dict[Value, Role] = {}

    def operand(role: Role, dims: tuple[int, ...]) -> Value:
        value = graph.add_input(role, TensorType(float32, dims))
        roles[value] = role
        return value

    result = operand("y", convolution.y)
    if epilogue.bias:
        result = graph.insert(Add(), [result, operand("bias", convolution.bias)]).output
    if epilogue.residual:
        result = graph.insert(Add(), [result, operand("residual", convolution.y)]).output
    if epilogue.relu:
        result = graph.insert(Relu(), [result]).output
    roles[result] = "y"
    infer(graph)
    chain = chain_of(graph.nodes)
    if isinstance(chain, str):
        raise TypeError(f"{epilogue} has no kernel: {chain}")

    def tensor(value: Value) -> Tensor:
        return Tensor(value, Format.PLAIN if roles[value] == "bias" else convolution.format)

    launch = elementwise(chain, tensor(result), [tensor(value) for value in chain.operands])
    places: dict[int, Role] = {
        i: roles[a.value] for i, a in enumerate(launch.args) if isinstance(a, Tensor)
    }
    return launch, places


def epilogue_kernel(
    device: CudaDevice, convolution: Convolution, epilogue: Epilogue, at: Mapping[Role, int]
) -> Callable[[CudaStream], None]:
    """Return what applies an epilogue to the result of a convolution; see `epilogue_launch`.

    Args:
        device: the GPU.
        convolution: what gave the result.
        epilogue: what is left to do.
        at: address by role.
    """
    launch, places = epilogue_launch(convolution, epilogue)
    code = device.compiler.submit(launch.source)
    return bound(device, launch, code, {place: at[role] for place, role in places.items()})
