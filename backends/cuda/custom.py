"""CUDA kernels for custom operators, supplied by users as source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from typing import Any, cast

import numpy as np

from ...runtime.base import arguments
from ...runtime.base.arguments import Rule
from ...runtime.base.record import record
from ...runtime.errors import CustomKernelError, KernelError, TercetError, UsageError
from ...runtime.ir.custom import Custom
from ...runtime.ir.dtypes import DType
from .algorithms.registry import Answer, Kernel, RecipeContext, register
from .recipe.launch import Launch
from .recipe.operands import Tensor
from .recipe.source import C_TYPES, UserSource

#: Maximum number of outputs of a custom operator, and of threads per block.
MAX_OUTPUTS, MAX_THREADS = 1 << 10, 1 << 10


@record
class CudaKernel:
    """One launch of a user's kernel.

        SOURCE = '''
        extern "C" __global__ void swish(const float* x, float* y, int count, float beta)
        {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < count) y[i] = x[i] / (1.0f + expf(-beta * x[i]));
        }'''

        def swish_on_cuda(x, y, *, beta):
            args = {"x": x, "y": y, "count": x.size, "beta": beta}
            return tercet.CudaKernel(SOURCE, "swish", grid=-(-x.size // 256), block=256, args=args)

    Attributes:
        source: CUDA C++, compiled by NVRTC once per GPU and cached.
        entry: its ``extern "C"`` function.
        grid: blocks along x, or along x, y and z; nothing is launched if one is 0.
        block: threads per block, at most 1024.
        args: the arguments by parameter name: tensors for pointers, and numbers. A mismatch raises
            a `KernelError` that names the parameter.
        types: element types by their aliases in the source, such as ``{"T": x.dtype}``.
        constants: compile-time constants by name.
        shared: dynamic shared memory in bytes.
    """

    source: str
    entry: str
    grid: int | tuple[int, int, int]
    block: int
    args: Mapping[str, Tensor | int | float | None] = field(hash=False)
    types: Mapping[str, DType] = field(default_factory=dict[str, DType], hash=False)
    constants: Mapping[str, int | bool | float] = field(
        default_factory=dict[str, "int | bool | float"], hash=False
    )
    shared: int = 0

    def launch(self, name: str) -> Launch:
        """Return the launch for a recipe.

        Args:
            name: name of the source in messages.

        Raises:
            CustomKernelError: the source has no such function, the arguments do not match, or a
                field is not what it may be.
            TooLarge: the grid exceeds CUDA's limits.
        """
        try:
            given = {each: rule(each, getattr(self, each)) for each, rule in _RULES.items()}
        except UsageError as error:
            raise CustomKernelError(f"{name}: {self.entry}: {error}") from error
        try:
            return Launch(
                UserSource(name, self.source),
                self.entry,
                given["grid"],
                given["block"],
                self.args,
                tuple(given["types"].items()),
                tuple(given["constants"].items()),
                shared=given["shared"],
            )
        except KernelError as error:
            raise CustomKernelError.of(error) from error


def _grid(name: str, value: Any) -> tuple[int, int, int]:
    """Take the number of blocks along x, or along x, y and z."""
    blocks = arguments.whole(0)
    if not isinstance(value, list | tuple):
        return blocks(name, value), 1, 1
    sizes = cast("Sequence[Any]", value)
    if len(sizes) != 3:
        raise arguments.refused(name, sizes, "blocks along x, or along x, y and z")
    x, y, z = (blocks(f"{name}[{axis}]", size) for axis, size in enumerate(sizes))
    return x, y, z


def _element_type(name: str, value: Any) -> DType:
    """Take a dtype that C++ code has."""
    with suppress(TypeError):
        if (dtype := np.dtype(value)) in C_TYPES:
            return dtype
    raise arguments.refused(name, value, "a dtype of a kernel's elements, such as x.dtype")


def _constant(name: str, value: Any) -> int | bool | float:
    """Take a number that becomes a ``constexpr``, of the C++ type of its own."""
    return value if isinstance(value, bool | int) else arguments.number()(name, value)


#: What the fields of a `CudaKernel` may be; its arguments are compared with the parameters.
_RULES: Mapping[str, Rule] = {
    "grid": _grid,
    "block": arguments.whole(1, MAX_THREADS),
    "types": arguments.mapping("element types by name", value=_element_type),
    "constants": arguments.mapping("numbers by name", value=_constant),
    "shared": arguments.whole(0),
}


def _recipe(context: RecipeContext) -> Answer:
    """Call the user's function for its launches."""
    op = cast("Custom", context.op)
    title = f"{op.domain}::{type(op).__name__}"
    operands = (*context.inputs, context.y, *context.more)
    try:
        found: Any = op.definition.kernels["cuda"](*operands, **op.given())
    except TercetError:
        raise
    except Exception as error:  # a user's function may raise anything
        problem = f"{type(error).__name__}: {error}"
        raise CustomKernelError(
            f"{title}: the operator's cuda function raised {problem}"
        ) from error
    if isinstance(found, str):
        return found
    launches: Sequence[Any] = found if isinstance(found, list | tuple) else (found,)
    for each in launches:
        if not isinstance(each, CudaKernel):
            problem = f"gave {type(each).__name__}; expected a tercet.CudaKernel, or a reason"
            raise CustomKernelError(f"{title}: the operator's cuda function {problem}")
    return tuple(each.launch(f"{op.domain}.{type(op).__name__}.cu") for each in launches)


register(Kernel(_recipe, outputs=MAX_OUTPUTS), Custom)
