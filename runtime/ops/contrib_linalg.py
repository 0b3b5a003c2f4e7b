"""Matrix inverse and dynamic time warping of the domain com.microsoft.

ONNX does not have them; they are declared in `docs/ContribOperators.md` of onnxruntime.
"""

from __future__ import annotations

from typing import ClassVar

from ..errors import ShapeError
from ..ir.dtypes import FLOATS, float32, int32
from ..ir.op import Op, op
from ..ir.types import TensorType
from .contrib_text import DOMAIN
from .shapes import dim, need_rank, same_dim


@op
class Inverse(Op):
    """The inverse of every matrix of [..., n, n]; undefined for singular matrices."""

    domain: ClassVar[str] = DOMAIN

    def infer(self, x: TensorType) -> TensorType:
        if x.dtype not in FLOATS:
            raise ShapeError(f"x is {x}; expected floats")
        if x.shape is not None:
            if len(x.shape) < 2:
                raise ShapeError(f"x is {x}; expected matrices")
            same_dim(x.shape[-2], x.shape[-1], f"rows and columns of x {x}")
        return x.without_value()


@op
class DynamicTimeWarping(Op):
    """Rows and columns of the cheapest path from corner to corner of [m, n] or [1, m, n]: [2, ?].

    A step leads to the next row, the next column or both.
    """

    domain: ClassVar[str] = DOMAIN

    def infer(self, input: TensorType) -> TensorType:
        if input.dtype != float32:
            raise ShapeError(f"input is {input}; expected float32")
        need_rank(input, (2, 3), "input")
        if input.rank == 3:
            same_dim(dim(input, 0), 1, f"matrices of input {input}")
        return TensorType(int32, (2, None))
