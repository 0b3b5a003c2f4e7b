"""Epilogues that store a second result: an elementwise function of the first one.

A batch normalization may come first, whose factors and shifts lie behind the bias.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import float32
from ....runtime.ir.graph import Node, Value
from ....runtime.ir.types import Array
from ....runtime.ops.norm import BatchNormalization
from ..recipe.launch import Launch, Recipe, launches_of
from ..recipe.operands import Given, Packed, Tensor, ceil_div
from .batch_norm import pack_batch_norm
from .epilogue import MAX_OPERANDS, Epilogue, epilogue_of
from .epilogue_operands import SECOND
from .namespaces import in_namespaces

#: The kernels that store second results of `epilogue.cuh`, also behind a batch normalization.
SCALING = frozenset(
    {
        "gemm/image_halves",
        "gemm/multistage",
        "gemm/reduce_splits_f16",
        "gemm/stationary",
        "gemm/swap_f16x3",
        "gemm/tma",
        "gemm/tma_persistent",
        "gemm/wgmma_rs",
    }
)
#: Those that store second results.
ABLE = SCALING | {"conv/interleave", "gemm/reduce_splits", "gemm/simt"}
#: Bytes to which factors and shifts are aligned.
ALIGNED = 32


@record
class SecondResult:
    """Elementwise nodes of one operand, whose first one reads what a kernel stores.

    Attributes:
        nodes: each reads the previous one; the first may be a batch normalization.
    """

    nodes: tuple[Node, ...]

    @property
    def output(self) -> Value:
        """What is stored."""
        return self.nodes[-1].output

    @property
    def norm(self) -> Node | None:
        """The batch normalization."""
        return self.nodes[0] if isinstance(self.nodes[0].op, BatchNormalization) else None

    def of(self, epilogue: Epilogue, first: Value, y: Tensor) -> Epilogue | str:
        """Return an epilogue that stores this result as well, or why there is none.

        Args:
            epilogue: of the first result.
            first: the first result.
            y: this result, in the format of the first one.
        """
        behind = None if epilogue.behind_bias is None else self.of(epilogue.behind_bias, first, y)
        behind = behind if isinstance(behind, Epilogue) else None
        if len(epilogue.operands) >= MAX_OPERANDS:
            return behind or f"{len(epilogue.operands)} operands beside a second result"
        if not epilogue.sums == epilogue.stored == y.dtype:
            return "a second result of another dtype"
        nodes, norm, macros = self.nodes, self.norm, [f"#define SECOND z{len(epilogue.operands)}"]
        if norm is not None:
            nodes, first = nodes[1:], norm.output
            macros.append(f"#define SECOND_PAIRS (BIAS ? {_place_of_pairs(y)} : 0)")
        also = epilogue_of(nodes, y, first, operand=Tensor)
        if isinstance(also, str):
            return also
        if also.operands:
            return "a second result with operands"
        titles = ("BatchNormalization" if norm else "", also.title)
        return replace(
            epilogue,
            code="\n".join((*macros, in_namespaces({"second": also}, epilogue))),
            operands=(*epilogue.operands, y),
            title=f"{epilogue.title} & {'+'.join(filter(None, titles))}".strip(),
            is_cheap=epilogue.is_cheap and also.is_cheap,
            kinds=(*epilogue.kinds, SECOND),
            behind_bias=behind,
        )

    def stored_by(self, recipe: Recipe, y: Tensor) -> Recipe | str:
        """Return a recipe that stores this result, or why it does not.

        Args:
            recipe: with the epilogue.
            y: the result.
        """
        launches = launches_of(recipe)
        found = [each for each in launches if y in each.arguments.values()]
        refused = "its kernel does not store a second result"
        if len(found) != 1 or _kernel_of(found[0]) not in ABLE:
            return refused
        if self.norm is None:
            return recipe
        (launch,) = found
        bias, constants = launch.arguments.get("bias"), dict(launch.constants)
        if (
            _kernel_of(launch) not in SCALING
            or constants.get("STACKED")
            or isinstance(bias, Packed)
        ):
            return refused
        scaled = replace(launch, args={**launch.arguments, "bias": self._pairs(bias, y)})
        return tuple(scaled if each is launch else each for each in launches)

    def _pairs(self, bias: Given, y: Tensor) -> Packed:
        """Return the bias of the first result, with the pairs behind it."""
        assert self.norm is not None
        assert isinstance(self.norm.op, BatchNormalization)
        own = (bias.value,) if isinstance(bias, Tensor) else ()
        epsilon, place = self.norm.op.epsilon, _place_of_pairs(y) if own else 0
        pack = partial(_pack_pairs, place=place, epsilon=epsilon)
        return Packed((*own, *self.norm.operands[1:]), ("pairs behind", place, epsilon), pack)


def _kernel_of(launch: Launch) -> str:
    return launch.file.removesuffix(".cu")


def _place_of_pairs(y: Tensor) -> int:
    """Return after how many bytes of the bias pairs begin."""
    return ceil_div(y.dims[1] * y.dtype.itemsize, ALIGNED) * ALIGNED


def _pack_pairs(*sources: Array, place: int, epsilon: float) -> Array:
    """Return the bytes of a bias, if there is one, and of what scales and shifts each channel."""
    *bias, scale, b, mean, var = sources
    pairs = pack_batch_norm(scale, b, mean, var, epsilon=epsilon, dtype=float32)
    begin = np.zeros(place, np.uint8)
    for data in bias:
        begin[: data.nbytes] = np.ascontiguousarray(data).view(np.uint8)
    return np.concatenate([begin, pairs.view(np.uint8).ravel()])
