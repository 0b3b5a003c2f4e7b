"""TMA tensor maps (Hopper), encoded by the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cuda.bindings import driver

from ....runtime.ir.dtypes import DType, bfloat16, float16, float32, uint8
from .status import check

if TYPE_CHECKING:
    from ..recipe.operands import TensorMap

_DTYPES: dict[DType, driver.CUtensorMapDataType] = {
    float16: driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    bfloat16: driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    float32: driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
    uint8: driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT8,
}
#: Shared memory swizzle by bytes of a row.
_SWIZZLES = {
    32: driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_32B,
    64: driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_64B,
    128: driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
}


def encoded(map: TensorMap, address: int) -> tuple[int, ...]:
    """Return a tensor map as the sixteen 64-bit numbers that kernels take.

    Args:
        map: the description; rows of its box have 32, 64 or 128 bytes.
        address: of the tensor, a multiple of 16.

    Raises:
        DeviceError: the driver rejects it.
    """
    itemsize, rank = map.dtype.itemsize, len(map.dims)
    dims = [driver.cuuint64_t(d) for d in map.dims]
    strides = [driver.cuuint64_t(s * itemsize) for s in map.strides]
    steps = [driver.cuuint32_t(s) for s in map.steps or (1,) * rank]
    end = (
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        _SWIZZLES[map.box[0] * itemsize],
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    start: tuple[Any, ...] = (_DTYPES[map.dtype], rank, address, dims, strides)
    if map.corners is None:
        box = [driver.cuuint32_t(b) for b in map.box]
        answer = driver.cuTensorMapEncodeTiled(*start, box, steps, *end)
    else:
        lower, upper = map.corners
        answer = driver.cuTensorMapEncodeIm2col(
            *start, list(lower), list(upper), *map.box, steps, *end
        )
    found = check(f"encoding of {map}", answer)
    return tuple(int(word) for word in found.opaque)
