"""Convolutions by computed filters, with the kernels of constant ones.

An algorithm describes its packed weights by their order; where they are computed, a launch brings
them into that order first, in the workspace. Filters that depthwise kernels find in their order,
those of images with channels last, are read as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import TypeGuard

from ..algorithms.registry import Answer
from ..gemm.convolution import ConvProblem
from ..gemm.pack_filters import FilterOrder
from ..recipe.launch import Launch, behind, launches_of, reading, sharing
from ..recipe.operands import Operand, Packed, Scratch, ceil_div

#: Bytes at multiples of which packed filters start.
ALIGNED = 256

Make = Callable[[ConvProblem, str], Answer]


def packing_first(make: Make) -> Make:
    """Return an algorithm for constant filters that also takes computed ones.

    Its kernels start when all before them have ended, as they read constants before they wait.
    """

    def made(conv: ConvProblem, variant: str = "") -> Answer:
        answer = make(conv, variant)
        if conv.w.data is not None or isinstance(answer, str):
            return answer
        launches = launches_of(answer)
        there = dict[Hashable, Scratch]()
        packing: list[Launch] = []
        end = behind(launches)
        for packed in (each for launch in launches for each in launch.operands):
            if not _packs(packed, conv) or packed.layout in there:
                continue
            first = packed.pack.computed(conv.w) if isinstance(packed.pack, FilterOrder) else None
            if first is None:
                return "computed weights, which no kernel packs"
            there[packed.layout] = Scratch(end)
            end = ceil_div(end + first.scratch, ALIGNED) * ALIGNED
            args = {**first.args, "y": there[packed.layout]}
            packing.append(replace(first, args=args, scratch=end))

        def place(operand: Operand) -> Operand:
            return there[operand.layout] if _packs(operand, conv) else operand

        rest = (replace(reading(launch, place), early=False) for launch in launches)
        return sharing(*packing, *rest)

    return made


def _packs(operand: Operand, conv: ConvProblem) -> TypeGuard[Packed]:
    """Whether an operand is the weights of a convolution in some order."""
    return isinstance(operand, Packed) and operand.sources == (conv.w.value,)
