"""What kernels take: the parameters of an entry and the structs among them, read from the source.

A kernel's file is the one place that declares them. Recipes give arguments by these names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from ....runtime.errors import KernelError
from ....runtime.ir.dtypes import DType, int16, int32, int64, uint32, uint64
from . import source as kernel_source
from .source import C_TYPES

_ENTRY = re.compile(r'extern "C" __global__ void\b')
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|^#line [^\n]*$", re.DOTALL | re.MULTILINE)
_QUALIFIER = re.compile(r"\b(?:const|volatile|__restrict__|__grid_constant__)\b")
_MACRO = re.compile(r"\b(\w+)\((\w+)\)")
_BLOCK = re.compile(r"[^;{}]*\{[^{}]*\}")
_WORD = re.compile(r"\w+")
_STRUCT = re.compile(r"\bstruct (?:alignas\([^)]*\) )?(\w+)")
_FUNCTION = re.compile(r"\b(?!__launch_bounds__|alignas)(\w+)\s*\(")
_MEMBER = re.compile(r"(\w+)\s*(?:\[(\w+)\])?\s*(?:=.*)?")
#: The element types by all names that C++ has for them.
DTYPES: Mapping[str, DType] = MappingProxyType(
    {name: dtype for dtype, name in C_TYPES.items()}
    | {"int": int32, "long long": int64, "short": int16, "u32": uint32}
    | {"unsigned": uint32, "unsigned int": uint32, "unsigned long long": uint64}
)

#: The struct of `ptx/tma.cuh` that the driver makes.
TENSOR_MAP = "TensorMap"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel.

    Attributes:
        name: as the kernel calls it.
        type: its C++ type without qualifiers; of a pointer, that of what it points to.
        is_pointer: whether it is an address.
    """

    name: str
    type: str
    is_pointer: bool


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a struct.

    Attributes:
        name: as the struct calls it.
        type: its C++ type.
        length: of an array: a number, or the name of a constant; empty for a single element.
    """

    name: str
    type: str
    length: str


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """The parameters of a kernel; there is one object of each.

    Attributes:
        file: the file in `kernels/`.
        entry: its ``extern "C"`` function.
        parameters: by name, in order.
        structs: the members of every struct that is passed by value, and of those inside of them.
        lengths: the names of constants that are lengths of their arrays.
    """

    file: str
    entry: str
    parameters: Mapping[str, Parameter]
    structs: Mapping[str, tuple[Member, ...]]
    lengths: frozenset[str]

    @property
    def title(self) -> str:
        """The file and the entry, for messages."""
        return f"{self.file}: {self.entry}"


def begins_early(file: str, entry: str) -> bool:
    """Whether a kernel waits for the one in front itself, so that it may begin while that runs.

    Raises:
        KernelError: there is no such file.
    """
    return entry in _waiting(kernel_source.KERNELS, file)


def signature_of(file: str, entry: str, code: str = "") -> Signature:
    """Return what a kernel takes.

    Args:
        file: the file in `kernels/`.
        entry: its function.
        code: generated code, whose macros may repeat a group of parameters.

    Raises:
        KernelError: the file has no such function, or the macro is not defined.
    """
    declared = _declared(kernel_source.KERNELS, file, entry)
    macro = _MACRO.search(declared)
    count = 0 if macro is None else _repeated(macro[1], code, file, entry)
    return _signature(kernel_source.KERNELS, file, entry, count)


@cache
def _text(folder: Path, file: str) -> str:
    """Return a file with its headers and without comments."""
    return _COMMENT.sub("", kernel_source.read_kernel(file))


@cache
def _declared(folder: Path, file: str, entry: str) -> str:
    """Return what stands between the parentheses after the name of a kernel."""
    text = _text(folder, file)
    for found in _ENTRY.finditer(text):
        head = text[found.end() : text.index("{", found.end())]
        name = re.search(rf"\b{entry}\s*\(", head)
        if name is not None:
            return head[name.end() : head.rindex(")")]
    raise KernelError(f'{file}: no extern "C" kernel {entry!r}', file=file)


@cache
def _waiting(folder: Path, file: str) -> frozenset[str]:
    """Return what calls `grid_dependency_sync` in a file, itself or in what it calls."""
    blocks = [(name, set(_WORD.findall(body))) for name, body in _top_level(_text(folder, file))]
    waiting, found = set[str](), {"grid_dependency_sync"}
    while found - waiting:
        waiting |= found
        found = {name for name, words in blocks if waiting & words}
    return frozenset(waiting)


def _top_level(text: str) -> Iterator[tuple[str, str]]:
    """Yield the functions and structs of a file: their names and what stands in their braces."""
    at = 0
    while (opening := text.find("{", at)) >= 0:
        body = _body(text, opening + 1)
        head = text[at:opening].rpartition(";")[2]
        name = _STRUCT.search(head) or _FUNCTION.search(head)
        if name is not None:
            yield name[1], body
        at = opening + 1 + len(body) + 1


def _repeated(macro: str, code: str, file: str, entry: str) -> int:
    """Return how often a macro of the generated code, ``#define M(X) X(0) X(1)``, repeats."""
    found = re.search(rf"^#define {macro}\((\w+)\)(.*)$", code, re.MULTILINE)
    if found is None:
        raise KernelError(f"{file}: {entry}: no code defines the macro {macro}", file=file)
    return len(re.findall(rf"\b{found[1]}\(\d+\)", found[2]))


@cache
def _signature(folder: Path, file: str, entry: str, count: int) -> Signature:
    """Return the signature with that many repetitions of what a macro repeats."""
    text, declared = _text(folder, file), _declared(folder, file, entry)

    def expanded(macro: re.Match[str]) -> str:
        group = re.search(rf"^#define {macro[2]}\((\w+)\)((?:\\\n|.)*)$", text, re.MULTILINE)
        if group is None:
            raise KernelError(f"{file}: {entry}: no macro {macro[2]}", file=file)
        body = group[2].replace("\\\n", " ")
        return "".join(body.replace(f"##{group[1]}", str(i)) for i in range(count))

    parameters = [_parameter(one) for one in _MACRO.sub(expanded, declared).split(",")]
    values = (p.type for p in parameters if not p.is_pointer and p.type != TENSOR_MAP)
    structs = dict(_structs(text, values))
    named = {parameter.name: parameter for parameter in parameters}
    lengths = frozenset(member.length for members in structs.values() for member in members)
    return Signature(file, entry, MappingProxyType(named), MappingProxyType(structs), lengths)


def _parameter(declared: str) -> Parameter:
    *words, name = _QUALIFIER.sub(" ", declared).replace("*", " * ").split()
    return Parameter(name, " ".join(word for word in words if word != "*"), "*" in words)


def _structs(text: str, types: Iterator[str]) -> Iterator[tuple[str, tuple[Member, ...]]]:
    """Yield the members of the structs among these types, and of the structs in them."""
    for name in dict.fromkeys(types):
        head = re.search(rf"\bstruct (?:alignas\([^)]*\) )?{name}\s*\{{", text)
        if head is None:
            continue
        members = tuple(_members(_body(text, head.end())))
        yield name, members
        yield from _structs(text, (member.type for member in members))


def _body(text: str, start: int) -> str:
    """Return what stands in braces, the one that opens them before `start`."""
    depth, at = 1, start
    while depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return text[start : at - 1]


def _members(body: str) -> Iterator[Member]:
    while (plain := _BLOCK.sub("", body)) != body:  # functions are no members
        body = plain
    for statement in body.split(";"):
        first, *others = statement.split(",")
        *words, name = first.replace(" [", "[").split() or [""]
        for declarator in (name, *others) if words else ():
            found = _MEMBER.fullmatch(declarator.strip())
            if found is not None:
                yield Member(found[1], " ".join(words), found[2] or "")
