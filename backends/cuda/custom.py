"""Custom operators with kernels that users bring, as CUDA source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ...runtime.errors import OperatorError, TercetError
from ...runtime.ir.custom import Custom
from ...runtime.ir.dtypes import DType
from ...runtime.ir.op import Op
from .algorithms.registry import KERNELS, Answer, Kernel, RecipeContext
from .recipe.launch import Launch
from .recipe.operands import Tensor
from .recipe.source import UserSource

#: Outputs that a custom operator may have.
MAX_OUTPUTS = 1 << 10


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """One launch of a kernel that a user brings.

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
        source: CUDA C++, compiled by NVRTC once for each GPU, and kept in the cache.
        entry: its ``extern "C"`` function.
        grid: blocks along x, or along x, y and z; nothing is launched where one is 0.
        block: threads of a block.
        args: what the function takes, by the names of its parameters: tensors for pointers, and
            numbers. What does not fit is a `KernelError` that names the parameter.
        types: element types by the names that the source has for them, such as ``{"T": x.dtype}``.
        constants: compile-time constants by name.
        shared: bytes of dynamic shared memory.
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
        """Return it as a recipe's launch.

        Args:
            name: of the source, in messages.

        Raises:
            KernelError: the source has no such function, or it does not take these arguments.
            TooLarge: CUDA does not launch such a grid.
        """
        return Launch(
            UserSource(name, self.source),
            self.entry,
            (self.grid, 1, 1) if isinstance(self.grid, int) else self.grid,
            self.block,
            self.args,
            tuple(self.types.items()),
            tuple(self.constants.items()),
            shared=self.shared,
        )


def kernel_of(op: Op) -> Kernel | None:
    """Return how an operator becomes a recipe, a custom one by what its user brings."""
    if isinstance(op, Custom) and "cuda" in op.definition.kernels:
        return _CUSTOM
    return KERNELS.get(type(op))


def _recipe(context: RecipeContext) -> Answer:
    """Ask the user's function for its launches."""
    op = cast("Custom", context.op)
    title = f"{op.domain}::{type(op).__name__}"
    operands = (*context.inputs, context.y, *context.more)
    try:
        found: Any = op.definition.kernels["cuda"](*operands, **op.given())
    except TercetError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise OperatorError(f"{title}: the operator's cuda function raised {said}") from error
    if isinstance(found, str):
        return found
    launches: Sequence[Any] = found if isinstance(found, list | tuple) else (found,)
    for each in launches:
        if not isinstance(each, CudaKernel):
            said = f"gave {type(each).__name__}; expected a tercet.CudaKernel, or a reason"
            raise OperatorError(f"{title}: the operator's cuda function {said}")
    return tuple(each.launch(f"{op.domain}.{type(op).__name__}.cu") for each in launches)


_CUSTOM = Kernel(_recipe, outputs=MAX_OUTPUTS)
