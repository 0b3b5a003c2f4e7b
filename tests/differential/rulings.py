"""All rulings, and which of them is about a sample."""

from __future__ import annotations

from . import rulings_both, rulings_onnxruntime, rulings_reference
from .ruling import Ruling
from .sample import Sample

RULINGS = (*rulings_both.RULINGS, *rulings_onnxruntime.RULINGS, *rulings_reference.RULINGS)


def ruling(sample: Sample, peer: str) -> Ruling | None:
    """Return the ruling about a peer's result, the gravest if there are several."""
    found = [
        each
        for each in RULINGS
        if peer in each.wrong.split() and sample.op in each.operators.split() and each.when(sample)
    ]
    return min(found, key=lambda each: each.precise is not None, default=None)
