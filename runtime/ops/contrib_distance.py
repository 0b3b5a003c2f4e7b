"""Pairwise distances of the domain com.microsoft, used by nearest neighbours and kernel methods.

ONNX does not have them; they are declared in `docs/ContribOperators.md` of onnxruntime.
"""

from __future__ import annotations

from typing import ClassVar

from ..errors import ShapeError
from ..ir.dtypes import float32, float64
from ..ir.op import Op, op
from ..ir.types import TensorType
from .contrib_text import DOMAIN
from .shapes import dim, need_rank, same_dim


@op
class CDist(Op):
    """The distance of every row of a [m, k] from every row of b [n, k]: [m, n]."""

    domain: ClassVar[str] = DOMAIN
    metric: str = "sqeuclidean"

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        if self.metric not in ("euclidean", "sqeuclidean"):
            raise ShapeError(f"metric={self.metric!r}; expected euclidean or sqeuclidean")
        if a.dtype not in (float32, float64) or b.dtype != a.dtype:
            raise ShapeError(f"a is {a}, b is {b}; expected float32 or float64, the same one")
        need_rank(a, 2, "a")
        need_rank(b, 2, "b")
        same_dim(dim(a, 1), dim(b, 1), f"columns of a {a} and b {b}")
        return a.with_shape((dim(a, 0), dim(b, 0)))
