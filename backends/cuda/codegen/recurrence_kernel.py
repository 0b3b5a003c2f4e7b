"""The kernel of a recurrence of elementwise steps: one thread for each element of its state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ....runtime.ir.graph import Value
from ..recipe.launch import Launch
from ..recipe.operands import Ints, Tensor, ceil_div, divisors, index_type, merge
from .elementwise import chain_of, compute_type
from .recurrences import Part, Recurrence, reshaped

#: Threads of a block: few, so that small states are spread over many multiprocessors; of large ones
#: as many as fill one. And the number of elements from which a state is large.
THREADS, MANY_THREADS, LARGE = 32, 256, 1 << 18
#: Number of steps whose parts are fetched before they are used.
DEPTH = 8


def recurrence(found: Recurrence, operand: Callable[[Value], Tensor]) -> Launch | str:
    """Return the launch of a recurrence, or why there is none."""
    size = found.result.value.tensor.size
    threads = THREADS if size < LARGE else MANY_THREADS
    before = [state.before for state in found.states]
    after = [state.after for state in found.states]
    chain = chain_of(found.body, sums=before, handed=after, result=found.result.value)
    if isinstance(chain, str):
        return chain
    initial = {state.before: state.initial for state in found.states}
    parts = {part.value: part for part in found.parts}
    whole = {value: part.whole for value, part in parts.items()}
    operands = [operand((whole | initial).get(v, v)) for v in chain.operands]
    args = _arguments(found, operand, operands, [parts.get(v) for v in chain.operands])
    if isinstance(args, str):
        return args
    y, numbers, states = operand(found.result.whole), range(len(operands)), len(before)
    moving = [i for i in numbers if chain.operands[i] in parts]
    fixed = [i for i in numbers if i >= states and i not in moving]
    names = [
        f"h{i}" if i < states else f"now{i}[q]" if i in moving else f"kept{i}" for i in numbers
    ]
    kinds = [compute_type(value.tensor.dtype) for value in before]
    extents = (x.extent for x in (y, *operands))
    return Launch(
        "elementwise/recurrence.cu",
        "recurrence",
        grid=(ceil_div(size, threads), 1, 1),
        block=threads,
        args=args,
        types=(
            ("Index", index_type(*extents)),
            ("R", y.dtype),
            *((f"A{i}", x.dtype) for i, x in enumerate(operands)),
        ),
        constants=(
            *(("THREADS", threads), ("DEPTH", DEPTH)),
            *(("RANK", len(args["sizes"])), ("FIRST", found.first is not None)),
        ),
        code="\n".join(
            [
                chain.code,
                *(f"using H{i} = {kind};" for i, kind in enumerate(kinds)),
                f"#define OPERANDS(X) {_each(numbers)}",
                f"#define STATES(X) {_each(range(states))}",
                f"#define FIXED(X) {_each(fixed)}",
                f"#define MOVING(X) {_each(moving)}",
                f"#define CALL(q) chain({', '.join((*names, *names[:states]))})",
            ]
        ),
        note=f"{found.count} steps {chain.title}",
    )


def _arguments(
    found: Recurrence,
    operand: Callable[[Value], Tensor],
    operands: Sequence[Tensor],
    parts: Sequence[Part | None],
) -> dict[str, Any] | str:
    """Return the arguments of the kernel, or why there are none.

    Args:
        found: the recurrence.
        operand: returns the operand of a value.
        operands: what a step reads.
        parts: the part of each operand that a step reads; None if it reads all of it.
    """
    y, dims = operand(found.result.whole), found.result.value.tensor.dims
    moves = [
        _broadcast(x.dims, x.strides, dims) if part is None else _of_part(part, dims)
        for part, x in zip(parts, operands, strict=True)
    ]
    first = None if found.first is None else operand(found.first)
    rows = [_of_part(found.result, dims), *moves]
    if first is not None:
        rows.append(reshaped(first.dims, first.strides, dims))
    if None in rows:
        return "axes of what its steps read and store differ"
    sizes, merged = merge(dims, [row for row in rows if row is not None])
    args: dict[str, Any] = {
        **{"y": y, "strides": merged[0], "origin": found.result.place * found.result.step},
        **{"step": found.result.step * found.way, "first": first},
        **{"strides_first": (0,) * len(sizes) if first is None else merged[-1]},
        **{"count": found.result.value.tensor.size, "sizes": sizes, **divisors(sizes)},
        "steps": found.count,
    }
    for i, (part, x) in enumerate(zip(parts, operands, strict=True)):
        args |= {f"a{i}": x, f"strides{i}": merged[i + 1]}
        args[f"origin{i}"] = 0 if part is None else part.place * part.step
        args[f"step{i}"] = 0 if part is None else part.step * found.way
    return args


def _each(numbers: Iterable[int]) -> str:
    return " ".join(f"X({i})" for i in numbers)


def _of_part(part: Part, dims: Ints) -> Ints | None:
    """Return the strides of a part of a tensor along `dims`; None if it does not fit them."""
    return _broadcast(part.value.tensor.dims, part.strides, dims)


def _broadcast(own: Ints, steps: Ints, dims: Ints) -> Ints | None:
    """Return the strides of a tensor repeated along `dims`; None if it has other axes."""
    missing = len(dims) - len(own)
    pairs = zip(own, dims[max(missing, 0) :], strict=False)
    if missing < 0 or any(size not in (1, whole) for size, whole in pairs):
        return None
    return (0,) * missing + tuple(0 if n == 1 else s for n, s in zip(own, steps, strict=True))
