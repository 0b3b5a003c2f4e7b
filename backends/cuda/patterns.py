"""The patterns that dedicated kernels compute: where each is looked for, and by which function.

A module of a pattern is imported when a graph has an operator at which its function is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from ...runtime.base.record import record
from ...runtime.ir.op import Op
from ...runtime.ops.attention import Attention
from ...runtime.ops.conv import Col2Im, Conv
from ...runtime.ops.elementwise import Div
from ...runtime.ops.gather import Gather, ScatterElements, ScatterND
from ...runtime.ops.matmul import Gemm, MatMul
from ...runtime.ops.movement import Concat
from ...runtime.ops.norm import LayerNormalization, RMSNormalization
from ...runtime.ops.packed import MatMulNBits
from ...runtime.ops.pool import GlobalAveragePool
from ...runtime.ops.recurrent import GRU, LSTM, RNN
from ...runtime.ops.reduce import ReduceMean
from ...runtime.ops.signal import DFT
from .recipe.pattern import Pattern


@record
class Finder:
    """A function that returns the pattern at a node of a graph, made of free nodes, or None.

    Attributes:
        module: the module of the pattern, in this package.
        name: the function.
        needs: what it is given besides: `tail`, the epilogue of a node; `meeting`, what combines
            two products; `chain`, the elementwise nodes before a node; `cast_before`, the Cast that
            a layer reads through; `takes_epilogue`; and, to choose among patterns, `may_join`,
            whether nodes may be one kernel. Of the one that is found this is asked anyway.
    """

    module: str
    name: str
    needs: tuple[str, ...] = ()

    @property
    def function(self) -> Callable[..., Pattern | None]:
        """The function, imported when it is first asked for."""
        return _function(self.module, self.name)


@cache
def _function(module: str, name: str) -> Any:
    return getattr(import_module(f".{module}", __package__), name)


_AVERAGED = Finder("conv.averaged", "averaged_conv_at", ("tail",))
_CHANNELS = Finder("attention.channels", "channel_attention_at")
_EXCITED = Finder("conv.excite", "excited_at", ("tail",))
_FEW_ROWS = Finder("gemm.few_rows", "few_rows_at", ("tail", "meeting"))
_MEASURED = Finder("gemm.measured", "measured_products_at", ("tail", "meeting"))
_GATED = Finder("gemm.gated", "gated_products_at", ("meeting",))
_NORMALIZED = Finder("gemm.normalized", "normalized_product_at", ("tail",))
_GATHERED_ROWS = Finder("norm.gathered_rows", "gathered_rows_at", ("tail",))
_HEAD_ROWS = Finder("norm.head_rows", "head_rows_at", ("tail",))
_TWICE = Finder("norm.norm_twice", "normalized_twice_at", ("tail",))
_HEADS_APART = Finder("norm.head_rows", "heads_apart_at", ("tail",))
_PLACED = Finder("codegen.placed_chains", "placed_chain_at")
_SEGMENTS = Finder("codegen.segments", "segment_reduction_at", ("chain", "takes_epilogue"))
_MOVED_LAYER = Finder("ops.recurrent_moved", "moved_layer_at")
_ROTATED_PRODUCT = Finder("gemm.rotated", "rotated_product_at", ("tail",))
_ROTATED_HEADS = Finder("attention.rotated_heads", "rotated_heads_at")

#: Asked about a Softmax without elementwise nodes around it.
CAST_SOFTMAX = Finder("norm.softmax", "cast_softmax_at")

#: Finders by the operator at which they are asked; the first pattern that is found is taken.
WHOLE: Mapping[type[Op], tuple[Finder, ...]] = {
    Attention: (
        _CHANNELS,
        Finder("attention.decode", "decode_attention_at", ("may_join",)),
        Finder("attention.rotate_append", "rotate_append_at", ("may_join",)),
        Finder("attention.sink", "sink_attention_at"),
        Finder("attention.places_first", "places_first_at"),
        Finder("attention.masked", "masked_attention_at"),
    ),
    Concat: (
        Finder("codegen.recurrences", "recurrence_at"),
        Finder("conv.correlation", "correlation_at"),
    ),
    Col2Im: (Finder("conv.folded", "folded_blocks_at"),),
    Conv: (
        Finder("conv.image_filters", "image_filters_at"),
        Finder("conv.inverted_residual", "inverted_residual_at", ("tail", "cast_before")),
        Finder("conv.scaled", "scaled_conv_at", ("tail",)),
        Finder("conv.back_to_back", "back_to_back_at", ("tail",)),
    ),
    DFT: (Finder("codegen.filtered_lines", "filtered_lines_at"),),
    Div: (
        Finder("attention.relu_linear", "relu_linear_at"),
        _CHANNELS,
        _HEAD_ROWS,
        Finder("norm.unit_rows", "divided_rows_at", ("tail",)),
    ),
    Gather: (
        _SEGMENTS,
        Finder("codegen.gathered", "gathered_chain_at", ("chain", "takes_epilogue")),
    ),
    GlobalAveragePool: (_AVERAGED,),
    LayerNormalization: (_ROTATED_HEADS, _HEAD_ROWS, _GATHERED_ROWS, _TWICE),
    RMSNormalization: (_ROTATED_HEADS, _HEAD_ROWS, _GATHERED_ROWS, _TWICE),
    MatMul: (
        _CHANNELS,
        Finder("attention.weighted", "weighted_heads_at"),
        _MEASURED,
        _FEW_ROWS,
        _GATED,
        _NORMALIZED,
        _ROTATED_PRODUCT,
        Finder("gemm.chosen", "chosen_matrices_at"),
    ),
    Gemm: (_EXCITED, _MEASURED, _FEW_ROWS, _GATED, _NORMALIZED),
    MatMulNBits: (_MEASURED, _FEW_ROWS, _GATED),
    **dict.fromkeys((GRU, LSTM, RNN), (_MOVED_LAYER,)),
    ReduceMean: (Finder("norm.variance", "variance_at"), _AVERAGED),
    ScatterElements: (_PLACED,),
    ScatterND: (_SEGMENTS, _PLACED),
}
#: The same of what no other group contains.
LAST: Mapping[type[Op], tuple[Finder, ...]] = {
    Attention: (Finder("attention.joined", "joined_attention_at"),),
    Concat: (Finder("codegen.joined_moves", "joined_moves_at", ("chain", "takes_epilogue")),),
    LayerNormalization: (_HEADS_APART,),
    RMSNormalization: (_HEADS_APART,),
    MatMul: (Finder("gemm.strided", "strided_product_at", ("tail",)),),
}
