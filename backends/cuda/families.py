"""The families of operators; importing them is what registers their kernels."""

from . import conv, elementwise, matmul, norm, pool, reduce, shape

FAMILIES = (conv, elementwise, matmul, norm, pool, reduce, shape)
