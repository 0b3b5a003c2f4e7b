"""Values that programs rarely expect, for attributes, tensors and types."""

from __future__ import annotations

from random import Random
from typing import Any

from onnx import AttributeProto, NodeProto, TensorProto, TypeProto

#: Numbers that sizes, axes and counts rarely are: ends of ranges, and what lies beside powers of 2.
NUMBERS = (
    *range(-3, 10),
    *(15, 16, 17, 31, 32, 33, 100, 255, 256, 1000, 65535, 65536),
    *(sign * 2**power + more for power in (31, 32, 44, 62) for sign in (-1, 1) for more in (-1, 0)),
    *(-(2**63), 2**63 - 1),
)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e-30, 1e9, 3.4e38, float("inf"), float("nan"))
WORDS = (
    "",
    "x",
    "linear",
    "SAME_UPPER",
    "NOTSET",
    "constant",
    "(",
    "a" * 5000,
    "../../x",
    "é\x1b[2J",
)
SPELLINGS: dict[str, Any] = {
    "i": AttributeProto.INT,
    "f": AttributeProto.FLOAT,
    "s": AttributeProto.STRING,
    "ints": AttributeProto.INTS,
    "floats": AttributeProto.FLOATS,
    "strings": AttributeProto.STRINGS,
    "t": AttributeProto.TENSOR,
    "g": AttributeProto.GRAPH,
    "graphs": AttributeProto.GRAPHS,
    "tp": AttributeProto.TYPE_PROTO,
    "sparse_tensor": AttributeProto.SPARSE_TENSOR,
}
NAMES = (
    "axis",
    "axes",
    "to",
    "perm",
    "pads",
    "mode",
    "body",
    "value",
    "dtype",
    "group",
    "none of these",
)
LOCATIONS = ("../../etc/passwd", "/etc/passwd", "absent.bin", "", ".", "a\0b", "model.onnx")
KINDS = tuple(TensorProto.DataType.values())
#: Sizes that may be made, so that a mutant is as often large as wrong.
SIZES = (0, 1, 2, 3, 4, 5, 8, 17)


def number(rng: Random) -> int:
    """Return a number: a small one, or one at the end of a range."""
    return rng.choice(NUMBERS)


def some_name(rng: Random) -> str:
    """Return a name that nothing in a seed has."""
    return rng.choice((f"nobody{rng.randrange(100)}x", *WORDS[:2], "é\x1b[2J", "a" * 3000))


def change_attribute(node: NodeProto, rng: Random) -> None:
    """Change one attribute of a node, in place."""
    if not node.attribute or rng.random() < 0.15:
        _give(node.attribute.add(name=rng.choice(NAMES)), rng)
        return
    found = rng.choice(node.attribute)
    match rng.randrange(9):
        case 0:
            node.attribute.remove(found)
        case 1:
            node.attribute.append(found)
        case 2:
            found.name = rng.choice(NAMES)
        case 3:
            kind = rng.choice(AttributeProto.AttributeType.keys())
            found.MergeFrom(AttributeProto(type=kind))
        case 4:
            found.ref_attr_name = rng.choice(NAMES)
        case 5:
            name = found.name
            found.Clear()
            found.name = name
            _give(found, rng)
        case _:
            _change_value(found, rng)


def _give(attribute: AttributeProto, rng: Random) -> None:
    """Give an attribute a value of any type."""
    spelling = rng.choice(list(SPELLINGS))
    attribute.type = SPELLINGS[spelling]
    match spelling:
        case "i":
            attribute.i = number(rng)
        case "f":
            attribute.f = rng.choice(FLOATS)
        case "s":
            attribute.s = rng.choice(WORDS).encode()
        case "ints":
            attribute.ints.extend(number(rng) for _ in range(rng.choice(SIZES)))
        case "floats":
            attribute.floats.extend(rng.choice(FLOATS) for _ in range(rng.choice(SIZES)))
        case "strings":
            attribute.strings.extend(rng.choice(WORDS).encode() for _ in range(rng.choice(SIZES)))
        case "t":
            attribute.t.data_type = rng.choice(KINDS)
            attribute.t.dims.extend(rng.choice(SIZES) for _ in range(rng.randrange(3)))
        case "tp":
            change_type(attribute.tp, rng)
        case _:
            getattr(attribute, spelling)  # empty


def _change_value(attribute: AttributeProto, rng: Random) -> None:
    """Change a value within its type."""
    if attribute.ints:
        match rng.randrange(3):
            case 0:
                attribute.ints.append(number(rng))
            case 1:
                del attribute.ints[rng.randrange(len(attribute.ints)) :]
            case _:
                attribute.ints[rng.randrange(len(attribute.ints))] = number(rng)
    elif attribute.floats:
        attribute.floats[rng.randrange(len(attribute.floats))] = rng.choice(FLOATS)
    elif attribute.strings:
        attribute.strings[rng.randrange(len(attribute.strings))] = rng.choice(WORDS).encode()
    elif attribute.HasField("t"):
        change_tensor(attribute.t, rng)
    elif attribute.HasField("s"):
        attribute.s = rng.choice((*(word.encode() for word in WORDS), b"\xff\xfe"))
    elif attribute.HasField("f"):
        attribute.f = rng.choice(FLOATS)
    else:
        attribute.i = number(rng)


def change_tensor(tensor: TensorProto, rng: Random) -> None:
    """Change elements, dims, dtype or storage of a tensor, in place."""
    match rng.randrange(9):
        case 0:
            tensor.data_type = rng.choice((*KINDS, number(rng) % 2**31))
        case 1 if tensor.dims:
            tensor.dims[rng.randrange(len(tensor.dims))] = number(rng)
        case 2:
            tensor.dims.append(rng.choice(SIZES))
        case 3:
            del tensor.dims[rng.randrange(len(tensor.dims) or 1) :]
        case 4:
            tensor.raw_data = tensor.raw_data[: -rng.randrange(1, 9)]
        case 5:
            tensor.raw_data += rng.randbytes(rng.randrange(1, 9))
        case 6:
            tensor.data_location = TensorProto.EXTERNAL
            numbers = {"offset": number(rng), "length": number(rng)}
            for key, value in {"location": rng.choice(LOCATIONS), **numbers}.items():
                if rng.random() < 0.9:
                    tensor.external_data.add(key=key, value=str(value))
        case _:
            _change_elements(tensor, rng)


def _change_elements(tensor: TensorProto, rng: Random) -> None:
    lists: tuple[Any, ...] = tensor.int64_data, tensor.int32_data
    lists += tensor.float_data, tensor.double_data
    for data in lists:
        if data:
            whole = data in (tensor.int64_data, tensor.int32_data)
            value = number(rng) if whole else rng.choice(FLOATS)
            if data is tensor.int32_data:
                value = max(-(2**31), min(int(value), 2**31 - 1))
            data[rng.randrange(len(data))] = value
            return
    if tensor.string_data:
        tensor.string_data[0] = rng.choice((*(word.encode() for word in WORDS), b"\xff\xfe"))
    elif tensor.data_type == TensorProto.INT64 and len(tensor.raw_data) >= 8:
        at = 8 * rng.randrange(len(tensor.raw_data) // 8)
        raw = number(rng).to_bytes(8, "little", signed=True)
        tensor.raw_data = tensor.raw_data[:at] + raw + tensor.raw_data[at + 8 :]
    elif tensor.raw_data:
        at = rng.randrange(len(tensor.raw_data))
        tensor.raw_data = tensor.raw_data[:at] + rng.randbytes(1) + tensor.raw_data[at + 1 :]


def change_type(type_: TypeProto, rng: Random) -> None:
    """Change a declared type, in place."""
    tensor = type_.tensor_type
    match rng.randrange(8):
        case 0:
            tensor.elem_type = rng.choice((*KINDS, number(rng) % 2**31))
        case 1:
            type_.Clear()
        case 2:
            kept = tensor.elem_type
            type_.sequence_type.elem_type.tensor_type.elem_type = kept
        case 3:
            type_.optional_type.elem_type.tensor_type.elem_type = rng.choice(KINDS)
        case 4:
            type_.map_type.key_type = rng.choice(KINDS)
            type_.map_type.value_type.tensor_type.elem_type = rng.choice(KINDS)
        case 5:
            tensor.ClearField("shape")
        case 6:
            tensor.shape.dim.add().dim_value = rng.choice(SIZES)
        case _ if tensor.shape.dim:
            dim = rng.choice(tensor.shape.dim)
            if rng.random() < 0.3:
                dim.dim_param = rng.choice(("n", "", "?", "é\x1b[2J"))
            else:
                dim.dim_value = rng.choice((*SIZES, number(rng)))
        case _:
            tensor.shape.dim.add().dim_param = "n"
