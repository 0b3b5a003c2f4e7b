"""Col2Im, deformable and causal convolutions."""

from __future__ import annotations

from ....runtime.ir.dtypes import FLOATS
from ....runtime.ops.conv import CausalConvWithState, Col2Im, DeformConv
from ....runtime.ops.window import window
from ..algorithms.registry import Answer, kernel, need_dtypes, need_known
from ..codegen.elementwise import NUMBERS
from ..conv.folded import fold_columns
from ..recipe.launch import Launch, each
from ..recipe.operands import Tensor, by_axis
from ..recipe.source import arithmetic


@kernel(Col2Im)
def col2im(op: Col2Im, y: Tensor, x: Tensor, image_shape: Tensor, block_shape: Tensor) -> Answer:
    """Sum blocks into images; each thread gathers the contributions to one element."""
    refused = need_known(block_shape=block_shape) or need_dtypes(NUMBERS, x)
    return refused or fold_columns(op, y, x, block_shape.ints)


@kernel(DeformConv)
def deform_conv(
    op: DeformConv,
    y: Tensor,
    x: Tensor,
    w: Tensor,
    offset: Tensor,
    b: Tensor | None = None,
    mask: Tensor | None = None,
) -> Answer:
    """Sample at shifted positions and accumulate with the weights."""
    refused = need_dtypes(FLOATS, x)
    if refused:
        return refused
    if x.rank != 4:
        return f"{x.rank - 2} spatial axes"
    view = window(op, x.dims[2:], w.dims[2:])
    plane = {
        **dict(zip(("channels", "height", "width"), x.dims[1:], strict=True)),
        **dict(zip(("filters", "out_height", "out_width"), y.dims[1:], strict=True)),
        **by_axis(kernel=view.kernel, stride=view.strides),
        **by_axis(pad=view.pads_begin, dilation=view.dilations),
        **{"groups": op.group, "offset_groups": op.offset_group},
    }
    return each(
        "conv/deform.cu",
        "deform_conv",
        y.size,
        {
            **{"x": x, "w": w, "offset": offset, "bias": b, "mask": mask, "y": y},
            **{"count": y.size, "p": plane},
        },
        types=(("T", x.dtype), ("A", arithmetic(x.dtype))),
    )


@kernel(CausalConvWithState, outputs=2)
def causal_conv_with_state(
    op: CausalConvWithState,
    y: Tensor | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    past: Tensor | None = None,
    *,
    more: tuple[Tensor | None, ...] = (),
) -> Answer:
    """Convolve each channel with its own past."""
    refused = need_dtypes(FLOATS, x)
    if refused:
        return refused
    (_, channels, length), size = x.dims, weight.dims[2]
    types = (("T", x.dtype), ("A", arithmetic(x.dtype)))
    constants = (("SILU", op.activation != "none"),)
    launches: list[Launch] = []
    if y is not None:
        args = {
            **{"x": x, "weight": weight, "bias": bias, "past": past, "y": y},
            **{"count": y.size, "channels": channels, "length": length, "kernel": size},
        }
        launches.append(
            each("conv/causal.cu", "causal_conv", y.size, args, types=types, constants=constants)
        )
    for state in more[:1]:
        if state is not None:
            args = {
                **{"x": x, "past": past, "state": state},
                **{"count": state.size, "length": length, "carried": size - 1},
            }
            launches.append(
                each(
                    "conv/causal.cu",
                    "causal_state",
                    state.size,
                    args,
                    types=types,
                    constants=constants,
                )
            )
    return tuple(launches)
