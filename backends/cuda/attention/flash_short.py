"""Flash attention with few keys, whose scores are the registers of some threads."""

from __future__ import annotations

from ....runtime.ir.dtypes import float32
from ..recipe.launch import Launch
from ..recipe.operands import ceil_div
from .heads import AttentionTask

#: Maximum number of keys.
MAX_KEYS = 32
#: Maximum threads of a row, words of each, and threads per block; bytes of a word.
MAX_LANES, WORDS, THREADS, WORD = 32, 2, 128, 16


def suits_short(task: AttentionTask) -> bool:
    """Return whether `attention_short.cu` supports the keys and heads of an attention."""
    batch, heads, length, size = task.q.dims
    words = ceil_div(max(size, task.v.dims[3]), _vector(task))
    counted = batch * heads * length < 2**31 - THREADS
    return task.total <= MAX_KEYS and words <= WORDS * MAX_LANES and task.sink is None and counted


def short(task: AttentionTask) -> Launch:
    """Return the launch of `attention_short.cu`, which `suits_short`."""
    batch, heads, length, size = task.q.dims
    vector, count = _vector(task), batch * heads * length
    words = tuple(ceil_div(each, vector) for each in (size, task.v.dims[3]))
    lanes = 1 << (ceil_div(max(words), WORDS) - 1).bit_length()
    rows = THREADS // lanes
    return Launch(
        "attention/attention_short.cu",
        "attention_short",
        grid=(ceil_div(count, rows), 1, 1),
        block=THREADS,
        args={**task.operands, **task.strides, **task.numbers, "y": task.y.tensor, "count": count},
        types=(
            ("T", task.q.tensor.dtype),
            ("M", float32 if task.mask is None else task.mask.dtype),
        ),
        constants=(
            *task.constants,
            *(("KEYS", task.total), ("LANES", lanes), ("ROWS", rows), ("VECTOR", vector)),
            *(("PER_K", ceil_div(words[0], lanes)), ("PER_V", ceil_div(words[1], lanes))),
        ),
        note=f"{batch * heads} x {length} x {task.total} x {size}",
        pitched=task.pitched,
    )


def _vector(task: AttentionTask) -> int:
    """Return how many elements of a head are read, or stored, at once."""
    maximum = WORD // task.q.tensor.dtype.itemsize
    return min(heads.vector(maximum) for heads in (task.q, task.k, task.v, task.y))
