"""Operators by family: one file each, named as in `runtime/ops`.

A family is imported when a model has one of its operators. All of them take a tenth of the time in
which tercet is imported.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from ....runtime.ir.op import Op

#: The files; names of parts of a family, such as `attention_rows`, begin with its name.
FILES = (
    "attention",
    "attention_rows",
    "boxes",
    "contrib_distance",
    "contrib_linalg",
    "contrib_text",
    "conv",
    "conv_transpose",
    "conv_variants",
    "experts",
    "gather",
    "image",
    "loss",
    "matmul",
    "ml",
    "ml_linear",
    "ml_maps",
    "ml_tables",
    "ml_trees",
    "movement",
    "movement_pads",
    "norm",
    "norm_rows",
    "packed",
    "packed_columns",
    "pool",
    "quantize",
    "quantize_dynamic",
    "quantize_products",
    "random",
    "recurrent",
    "recurrent_activations",
    "recurrent_steps",
    "reduce",
    "resize",
    "search",
    "sequence",
    "shape",
    "signal",
    "text",
    "training",
)


def provide(operator: type[Op]) -> None:
    """Import the family of an operator, if it has one here."""
    _import(operator.__module__.rpartition(".")[2])


@cache
def _import(family: str) -> None:
    for file in FILES:
        if file == family or file.startswith(f"{family}_"):
            import_module(f".{file}", __name__)
