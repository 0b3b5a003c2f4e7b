"""Optimizer steps."""

from __future__ import annotations

from ....runtime.ir.dtypes import FLOATS, int64
from ....runtime.ir.op import Op
from ....runtime.ops.training import Adagrad, Adam, Momentum
from ..algorithms.registry import Answer, kernel, need_dtypes
from ..recipe.launch import Launch, each
from ..recipe.operands import Tensor
from ..recipe.source import arithmetic

ADAGRAD, ADAM, MOMENTUM, NESTEROV = range(4)


def _kind(op: Op) -> int:
    if isinstance(op, Momentum):
        return NESTEROV if op.mode == "nesterov" else MOMENTUM
    return ADAM if isinstance(op, Adam) else ADAGRAD


@kernel(Adagrad, Adam, Momentum, outputs=3)
def optimize(
    op: Adagrad | Adam | Momentum,
    y: Tensor | None,
    rate: Tensor,
    step: Tensor,
    *inputs: Tensor,
    more: tuple[Tensor | None, ...] = (),
) -> Answer:
    """Compute one step, one launch per tensor."""
    refused = need_dtypes(FLOATS, rate, *inputs) or need_dtypes((int64,), step)
    if refused:
        return refused
    kinds = 4 if isinstance(op, Adam) else 3
    count = len(inputs) // kinds
    results = (y, *more, *(None,) * (len(inputs) - count))
    factors = {
        **{name: getattr(op, name, 0.0) for name in ("alpha", "beta", "epsilon")},
        **{"decay": getattr(op, "decay_factor", 0.0), "norm": op.norm_coefficient},
        "norm_post": getattr(op, "norm_coefficient_post", 0.0),
    }
    launches: list[Launch] = []
    for i in range(count):
        x, gradient, *states = inputs[i::count]
        new, *new_states = results[i : count * (kinds - 1) : count]
        first, second = (*states, None)[:2]
        new_first, new_second = (*new_states, None)[:2]
        launches.append(
            each(
                "sequence/optimize.cu",
                "optimize",
                x.size,
                {
                    **{"rate": rate, "step": step, "x": x, "gradient": gradient, "y": new},
                    **{"first": first, "second": second, "count": x.size, "by": factors},
                    **{"new_first": new_first, "new_second": new_second},
                },
                types=(
                    *(("T", x.dtype), ("R", rate.dtype), ("I", step.dtype)),
                    ("A", arithmetic(x.dtype)),
                ),
                constants=(("KIND", _kind(op)),),
            )
        )
    return tuple(launches)
