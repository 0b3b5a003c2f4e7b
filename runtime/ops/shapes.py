"""Shape arithmetic shared by shape rules, with symbols and unknown sizes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from ..errors import ShapeError
from ..ir.dtypes import INTEGERS, DType, name_of
from ..ir.grown import combined, divided, multiplied
from ..ir.limited import Limited
from ..ir.needs import equate
from ..ir.types import Dim, MapType, OptionalType, SequenceType, Shape, TensorType, ValueType

#: The limit of numpy's iterators on the number of axes.
MAX_RANK = 32
MAX_SIZE = 2**63 - 1


def checked(dims: Iterable[Dim]) -> Shape:
    """Return `dims` as a shape; raises ShapeError for impossible sizes or ranks."""
    shape = tuple(dims)
    if len(shape) > MAX_RANK:
        raise ShapeError(f"a tensor of {len(shape)} axes; at most {MAX_RANK} are supported")
    for dim in shape:
        if isinstance(dim, int) and not 0 <= dim <= MAX_SIZE:
            raise ShapeError(f"shape {shape_text(shape)} has the impossible size {dim}")
    return shape


def normalize_axis(axis: int, rank: int, name: str = "axis") -> int:
    """Return `axis` counted from the front; raises ShapeError outside [-rank, rank)."""
    if not -rank <= axis < rank:
        raise ShapeError(f"{name}={axis} is out of range for a tensor of rank {rank}")
    return axis + rank if axis < 0 else axis


def normalize_axes(axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Return `axes` counted from the front, in their order; raises ShapeError for duplicates."""
    found = tuple(normalize_axis(axis, rank, "axes") for axis in axes)
    if len(set(found)) != len(found):
        raise ShapeError(f"axes={found} names an axis twice")
    return found


def same_dim(a: Dim, b: Dim, what: str) -> Dim:
    """Return the more precise of two sizes that must be equal.

    Raises:
        ShapeError: both are known and differ; `what` describes them.
    """
    if isinstance(a, int) and isinstance(b, int) and a != b:
        raise ShapeError(f"{what} must agree: {a} against {b}")
    equate(a, b)
    if isinstance(a, int):
        return a
    return a if b is None else b


def same_shape(a: Shape | None, b: Shape | None, what: str) -> Shape | None:
    """Return the more precise of two shapes that must be equal; raises ShapeError otherwise."""
    if a is None or b is None:
        return b if a is None else a
    if len(a) != len(b):
        raise ShapeError(f"{what} must agree: {shape_text(a)} against {shape_text(b)}")
    return tuple(same_dim(p, q, what) for p, q in zip(a, b, strict=True))


def broadcast(*shapes: Shape | None) -> Shape | None:
    """Return the broadcast shape by ONNX's (numpy's) rule.

    A known size other than 1 determines its axis, whatever the others are.

    Raises:
        ShapeError: known sizes are incompatible.
    """
    known = [shape for shape in shapes if shape is not None]
    if len(known) != len(shapes):
        return None
    return checked(reduce(_broadcast_two, known, ()))


def _broadcast_two(a: Shape, b: Shape) -> Shape:
    if not a or a == b:
        return a or b
    rank = max(len(a), len(b))
    left = (1,) * (rank - len(a)) + a
    right = (1,) * (rank - len(b)) + b
    try:
        return tuple(broadcast_dim(p, q) for p, q in zip(left, right, strict=True))
    except ShapeError as error:
        raise ShapeError(f"{shape_text(a)} and {shape_text(b)} do not broadcast") from error


def broadcast_dim(a: Dim, b: Dim) -> Dim:
    """Return the broadcast of two sizes of an axis; raises ShapeError if they are incompatible."""
    if a == 1 or b == 1:
        return b if a == 1 else a
    if isinstance(a, int) and isinstance(b, int) and a != b:
        raise ShapeError(f"{a} and {b} do not broadcast")
    if isinstance(a, int):
        return a
    if isinstance(b, int):
        return b
    for size, other in ((a, b), (b, a)):
        if isinstance(other, Limited) and other.size == size and other.most > 1:
            return size
    return a if a == b else None


def product(dims: Iterable[Dim]) -> Dim:
    """Return the number of elements; symbols survive multiplication by 1, and 0 gives 0.

    Growing sizes can be multiplied by numbers.
    """
    total, symbols = 1, list[Dim]()
    for dim in dims:
        if isinstance(dim, int):
            total *= dim
        else:
            symbols.append(dim)
    if total == 0 or not symbols:
        return total
    if len(symbols) > 1:
        return None
    return symbols[0] if total == 1 else multiplied(symbols[0], total)


def add(a: Dim, b: Dim) -> Dim:
    """Return a + b; adding 0 keeps a symbol."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if a == 0 or b == 0:
        return b if a == 0 else a
    return combined(a, b, 1)


def need_rank(type_: TensorType | None, ranks: int | tuple[int, ...], name: str) -> None:
    """Raise ShapeError if the rank of input `name` is known and not among `ranks`."""
    allowed = (ranks,) if isinstance(ranks, int) else ranks
    if type_ is not None and type_.rank is not None and type_.rank not in allowed:
        wanted = " or ".join(map(str, allowed))
        raise ShapeError(f"{name} must be of rank {wanted}, not {type_}")


def need_one(type_: TensorType | None, name: str) -> None:
    """Raise ShapeError if input `name` is known not to have exactly one element."""
    if type_ is not None and type_.shape is not None:
        count = product(type_.shape)
        if isinstance(count, int) and count != 1:
            raise ShapeError(f"{name} is {type_}; expected one element")


def shape_text(shape: Shape | None) -> str:
    """Return a shape as shown in messages: ``[n,3,224,?]``."""
    if shape is None:
        return "[...]"
    return f"[{','.join('?' if d is None else str(d) for d in shape)}]"


def need_vector(type_: TensorType | None, size: Dim, name: str) -> None:
    """Raise ShapeError unless input `name` can be 1-D with `size` elements."""
    need_rank(type_, 1, name)
    found = dim(type_, 0)
    if isinstance(found, int) and isinstance(size, int) and found != size:
        raise ShapeError(f"{name} {type_} must have {size} elements")


def need_broadcastable(type_: TensorType | None, target: Shape | None, name: str) -> None:
    """Raise ShapeError if input `name` cannot be broadcast to `target` alone."""
    if type_ is None or type_.shape is None or target is None:
        return
    pairs = zip(reversed(type_.shape), reversed(target), strict=False)
    clash = any(isinstance(a, int) and isinstance(b, int) and a not in (1, b) for a, b in pairs)
    if clash or len(type_.shape) > len(target):
        raise ShapeError(f"{name} {type_} does not broadcast to {shape_text(target)}")


def dim(type_: TensorType | None, axis: int) -> Dim:
    """Return the size of one axis, None if unknown."""
    return None if type_ is None or type_.shape is None else type_.shape[axis]


def quotient(a: Dim, b: Dim, what: str) -> Dim:
    """Return a / b; raises ShapeError if both are known and `b` does not divide `a`."""
    if isinstance(b, int) and b < 1:
        raise ShapeError(f"{what}: {b} is not positive")
    if not isinstance(a, int) or not isinstance(b, int):
        return a if b == 1 else divided(a, b)
    if a % b:
        raise ShapeError(f"{what}: {b} does not divide {a}")
    return a // b


def times(a: Dim, b: Dim) -> Dim:
    """Return a * b; multiplying by 1 keeps a symbol."""
    return product((a, b))


def same_dtype(*types: TensorType | None) -> DType:
    """Return the common dtype of `types` (None: omitted); raises ShapeError if they differ."""
    found = [t.dtype for t in types if t is not None]
    if any(dtype != found[0] for dtype in found):
        text = " and ".join(dict.fromkeys(map(name_of, found)))
        raise ShapeError(f"inputs are {text}; all must have the same dtype")
    return found[0]


def common_shape(a: Shape | None, b: Shape | None) -> Shape | None:
    """Return what two alternative shapes have in common."""
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(p if p == q else None for p, q in zip(a, b, strict=True))


def common_type(a: ValueType | None, b: ValueType | None, what: str) -> ValueType | None:
    """Return what two alternative types have in common; raises ShapeError if nothing.

    Args:
        a: one type; None if unknown.
        b: the other.
        what: names the value, for the message.
    """
    if a is None or b is None:
        return None
    if isinstance(a, TensorType) and isinstance(b, TensorType) and a.dtype == b.dtype:
        return TensorType(a.dtype, common_shape(a.shape, b.shape))
    if isinstance(a, SequenceType) and isinstance(b, SequenceType):
        return SequenceType(common_type(a.element, b.element, what))
    if isinstance(a, OptionalType) and isinstance(b, OptionalType):
        return OptionalType(common_type(a.element, b.element, what))
    if isinstance(a, OptionalType) or isinstance(b, OptionalType):
        bare = [t.element if isinstance(t, OptionalType) else t for t in (a, b)]
        common_type(bare[0], bare[1], what)
        return None
    if isinstance(a, MapType) and isinstance(b, MapType) and a.key == b.key:
        return MapType(a.key, common_type(a.element, b.element, what))
    raise ShapeError(f"{what} is {a} or {b}; expected the same dtype")


def ints_of(x: TensorType | None, name: str, maximum: int = MAX_RANK) -> tuple[Dim, ...] | None:
    """Return the elements of the small integer vector (or scalar) `name` as far as known.

    Returns:
        One entry per element, None for unknown ones; None if their number is unknown, or if
        the input is omitted.

    Raises:
        ShapeError: it is not an integer tensor, has more than one axis, or more than `maximum`
            elements.
    """
    if x is None:
        return None
    if x.dtype not in INTEGERS:
        raise ShapeError(f"{name} is {x}; expected integers")
    if x.shape is None:
        return None
    need_rank(x, (0, 1), name)
    count = product(x.shape)
    if not isinstance(count, int):
        return None
    if count > maximum:
        raise ShapeError(f"{name} has {count} elements; expected at most {maximum}")
    return (None,) * count if x.ints is None else x.ints


def exact_ints_of(x: TensorType | None, name: str) -> tuple[int, ...] | None:
    """Return the elements of the integer vector `name`, or None unless all are known."""
    found = ints_of(x, name)
    if found is None:
        return None
    exact = tuple(v for v in found if isinstance(v, int))
    return exact if len(exact) == len(found) else None


def int_of(x: TensorType | None, name: str) -> Dim:
    """Return the element of the integer scalar (or vector of length 1) `name`."""
    found = ints_of(x, name, maximum=1)
    if found is None:
        return None
    if len(found) != 1:
        raise ShapeError(f"{name} is {x}; expected one element")
    return found[0]


def need_choice(value: str, name: str, *choices: str) -> None:
    """Raise ShapeError unless the attribute `name` has one of the values that ONNX allows."""
    if value not in choices:
        raise ShapeError(f"{name}={value!r}; ONNX has {', '.join(choices)}")
