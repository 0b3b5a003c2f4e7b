"""Activations of the products of a mixture of experts, in C++."""

from __future__ import annotations

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType
from ....runtime.ops.experts import Mixture
from ..recipe.source import C_TYPES, literal


@record
class Activation:
    """What is stored of the sums of a product.

    Attributes:
        code: the function ``epilogue`` of `gemv.cuh`.
        stored: the dtype it stores.
        title: for reports.
    """

    code: str
    stored: DType
    title: str = ""


#: Activations of one number `x`, in C++.
_FORMULAS = {
    "relu": "fmaxf(x, 0.0f)",
    "gelu": "0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)))",
    "silu": "x / (1 + expf(-x))",
    "identity": "x",
}


def _float(number: float) -> str:
    return f"float({literal(number)})"


def activation_of(
    op: Mixture | None, products: int, dtype: DType, stored: DType | None = None
) -> Activation:
    """Return the activation of an operator.

    Args:
        op: None if sums are stored as they are.
        products: whose sums it takes: those of one, or of a gate and another.
        dtype: of the mixture.
        stored: what is stored, `dtype` if None.
    """
    kind = "identity" if op is None else op.activation_type
    values = ["value"] if products == 1 else ["value0", "value1"]
    if op is not None and kind == "swiglu":
        gate, linear = values
        is_late = bool(op.swiglu_limit_after_activation)
        limit = "" if op.swiglu_limit is None else _float(op.swiglu_limit)
        if limit:
            gate = gate if is_late else f"fminf({gate}, {limit})"
            linear = f"fminf(fmaxf({linear}, -{limit}), {limit})"
        alpha, beta = _float(op.activation_alpha), _float(op.activation_beta)
        gate = f"{gate} / (1 + expf(-{alpha} * {gate}))"
        if limit and is_late:
            gate = f"fminf({gate}, {limit})"
        result = f"{gate} * ({linear} + {beta})"
    else:
        result = f"activated({values[0]})" + "".join(f" * {value}" for value in values[1:])
    made = dtype if stored is None else stored
    operand = f"const {C_TYPES[dtype]}*"
    numbers = "".join(f"float {value}, " for value in values)
    code = (
        "__device__ __forceinline__ float activated(float x) "
        f"{{ return {_FORMULAS.get(kind, 'x')}; }}\n"
        f"__device__ __forceinline__ {C_TYPES[made]} epilogue({numbers}long long, int, int, "
        f"{operand}, {operand}) {{ return {C_TYPES[made]}({result}); }}"
    )
    return Activation(code, made, "" if kind == "identity" else kind)
