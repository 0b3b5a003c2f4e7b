"""Convolutions that also leave totals of channels: `multistage.cu` and, of float32, `wgmma_rs.cu`.

What averages the image of squeeze-and-excite is no kernel then. Each tile of pixels leaves a row of
totals, which the kernel behind adds up.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import float32
from ....runtime.ir.graph import Node
from ....runtime.ops.conv import Conv
from ....runtime.plan.format import Format
from ..algorithms.registry import RecipeContext, Setting, kernel_of
from ..codegen.epilogue import epilogue_of
from ..recipe.launch import Launch
from ..recipe.operands import Scratch, Tensor, ceil_div
from ..recipe.pattern import OperandOf
from ..recipe.setting import DECIDED
from .atoms import HALVES
from .schedules.multistage import SplitK

#: The most rows of totals of an image, all of which each block of the kernel behind reads.
MAX_PARTS = 64
#: Of `wgmma_rs.cu`: rows of a warp, adjacent results, and the most columns of tiles that leave
#: totals; see `early_operands.cuh`.
ROWS, VECTOR, MAX_COLUMNS = 16, 4, 64
#: Parameters that kernels with totals lack.
UNUSED = frozenset({"heads", "head_a", "head_b", "halves"})


@record
class Totals:
    """A convolution that leaves the totals of channels at the beginning of the workspace.

    Attributes:
        launch: the kernel.
        parts: rows of totals.
        image: where its results are.
    """

    launch: Launch
    parts: int
    image: Tensor | Scratch


def with_totals(
    nodes: tuple[Node, ...], operand: OperandOf, setting: Setting, *, stores: bool
) -> Totals | str:
    """Return a convolution of one image that stores its results and totals, or why there is none.

    Args:
        nodes: the convolution, with its epilogue.
        operand: returns the operand of a value.
        setting: the GPU and the user's options.
        stores: whether its results are read elsewhere; else they are in the workspace.
    """
    conv, *behind = nodes
    own = setting.for_node(conv)
    if own.is_decided:
        return DECIDED
    y = Tensor(nodes[-1].output, Format.CHANNELS_LAST)
    epilogue = epilogue_of(tuple(behind), y, conv.output, operand=operand)
    kernel = kernel_of(conv.op)
    if isinstance(epilogue, str) or kernel is None:
        return epilogue if isinstance(epilogue, str) else "no kernel"
    if y.dims[0] > 1:
        return f"{y.dims[0]} images"
    inputs = tuple(value and operand(value) for value in conv.inputs)
    made = kernel.build(RecipeContext(conv.op, y, inputs, own, epilogue=epilogue))
    if isinstance(made, str):
        return made
    if isinstance(made, tuple) and len(made) == 1:
        (made,) = made
    rows = _rows_of_totals(made) if isinstance(made, Launch) else 0
    if not isinstance(made, Launch) or not rows:
        return "a kernel that leaves no totals"
    parts = ceil_div(prod(y.dims[2:]), rows) * made.cluster[2]
    if parts > MAX_PARTS:
        return f"{parts} rows of totals"
    nbytes = ceil_div(4 * parts * y.dims[1], 256) * 256
    image = operand(y.value) if stores else Scratch(nbytes)
    if not isinstance(image, Scratch) and image != y:
        return "images not in channels-last format"
    args = {name: each for name, each in made.arguments.items() if name not in UNUSED}
    launch = replace(
        made,
        entry=f"{made.entry}_totals",
        args={**args, "c": image, "totals": Scratch(0)},
        code=f"#define TOTALS 1\n{made.code}",
        scratch=nbytes + (0 if stores else y.size * y.dtype.itemsize),
        note=f"{made.note} totals",
        pitched=tuple(each for each in made.pitched if each == inputs[0]),
    )
    return Totals(launch, parts, image)


def _rows_of_totals(launch: Launch) -> int:
    """Return the rows of results for which a kernel leaves a row of totals; 0 if it leaves none."""
    of = dict(launch.constants)
    if (launch.file, launch.entry) == ("gemm/multistage.cu", "mma"):
        # Threads of a cluster's block add up columns, eight of a row each.
        even = of["SPLIT"] == SplitK.WHOLE or launch.block % (of["BN"] // 8) == 0
        fits = of["SPLIT"] != SplitK.PARTIAL and not of["PARTS"]
        return int(of["BM"]) if even and fits else 0
    if (launch.file, launch.entry) != ("gemm/wgmma_rs.cu", "split_wgmma"):
        return 0
    plain = launch.arguments["halves"] is None and of["SPLIT"] == SplitK.WHOLE
    fours = of["VECTOR_C"] == VECTOR and not of["POOL"] and of["BN"] <= MAX_COLUMNS
    return ROWS if plain and fours and of["DECLARED"] == launch.block else 0


def leaves_totals(node: Node) -> bool:
    """Whether a node is a convolution of one image by constants, which may leave totals.

    Those of float32 in one group may read halves of numbers, which is worth more.
    """
    if not isinstance(node.op, Conv):
        return False
    x, *constants = node.operands
    one = len(x.tensor.dims) == 4 and x.tensor.dims[0] == 1
    fits = x.tensor.dtype in HALVES or (x.tensor.dtype == float32 and node.op.group > 1)
    return one and fits and all(v.is_constant for v in constants)
