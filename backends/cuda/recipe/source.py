"""Kernel sources: the text that NVRTC compiles, and the signatures that it declares.

A kernel's file is the only declaration of its parameters.

The text is self-contained: types and constants, generated functions, then the file with its own
headers inlined. So equal texts mean equal code, and the text is the cache key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cache
from itertools import chain
from math import isinf, isnan
from pathlib import Path
from types import MappingProxyType

from ....runtime.base.record import record
from ....runtime.errors import KernelError
from ....runtime.ir.dtypes import (
    INTEGERS,
    DType,
    bfloat16,
    bool_,
    float4e2m1,
    float8e4m3fn,
    float8e4m3fnuz,
    float8e5m2,
    float8e5m2fnuz,
    float8e8m0,
    float16,
    float32,
    float64,
    int2,
    int4,
    int8,
    int16,
    int32,
    int64,
    uint2,
    uint4,
    uint8,
    uint16,
    uint32,
    uint64,
)

KERNELS = Path(__file__).parents[1] / "kernels"

#: C++ names of all element types.
C_TYPES: Mapping[DType, str] = {
    float32: "float",
    float64: "double",
    float16: "__half",
    bfloat16: "__nv_bfloat16",
    int8: "int8",
    int16: "int16",
    int32: "int32",
    int64: "int64",
    uint8: "uint8",
    uint16: "uint16",
    uint32: "uint32",
    uint64: "uint64",
    bool_: "bool",
    float8e4m3fn: "Float8e4m3fn",
    float8e4m3fnuz: "Float8e4m3fnuz",
    float8e5m2: "Float8e5m2",
    float8e5m2fnuz: "Float8e5m2fnuz",
    float8e8m0: "Float8e8m0",
    float4e2m1: "Float4e2m1",
    int4: "Int4",
    int2: "Int2",
    uint4: "Uint4",
    uint2: "Uint2",
}
#: Those defined by `narrow_types.cuh`.
SMALL = (float8e4m3fn, float8e4m3fnuz, float8e5m2, float8e5m2fnuz, float8e8m0, float4e2m1)
SMALL += (int4, int2, uint4, uint2)
_SMALL_NAMES = frozenset(C_TYPES[dtype] for dtype in SMALL)
_HEADERS = {"__half": "cuda_fp16.h", "__nv_bfloat16": "cuda_bf16.h"}
#: Declarations of <cmath> and <cstdint>, which NVRTC lacks.
_PRELUDE = (
    "#define INFINITY __int_as_float(0x7f800000)",
    "#define NAN __int_as_float(0x7fffffff)",
    "using int8 = signed char; using uint8 = unsigned char;",
    "using int16 = short; using uint16 = unsigned short;",
    "using int32 = int; using uint32 = unsigned int;",
    "using int64 = long long; using uint64 = unsigned long long;",
)
_INCLUDE = re.compile(r'^#include "([\w/]+\.cuh)"$', re.MULTILINE)


class UserSource(str):
    """The name of a user's source together with its text, in place of a file of `kernels/`.

    Attributes:
        text: the CUDA C++ text.
    """

    text: str

    def __new__(cls, name: str, text: str) -> UserSource:
        """Return the name, for compiler messages, with the text attached."""
        found = super().__new__(cls, re.sub(r"[^\w.:-]", "_", name))
        found.text = text
        return found

    def __eq__(self, other: object) -> bool:
        """Whether text and name are equal."""
        return isinstance(other, UserSource) and (str(self), self.text) == (str(other), other.text)

    def __hash__(self) -> int:
        """Return a hash consistent with equality."""
        return hash((str(self), self.text))


def arithmetic(dtype: DType) -> DType:
    """Return the compute dtype of an element type."""
    if dtype in (float32, float64, int32, int64, uint32, uint64):
        return dtype
    return int32 if dtype in INTEGERS or dtype == bool_ else float32


@record
class KernelSource:
    """What is compiled: a file of `kernels/` and everything that parameterises it.

    Attributes:
        file: its path in `kernels/`, such as ``conv/conv.cu``.
        types: C++ type names by alias, in pairs: ``("T", "float")``.
        constants: values by name, in pairs; they become `constexpr`.
        code: generated functions and macros used by the file.
    """

    file: str
    types: tuple[tuple[str, str], ...] = ()
    constants: tuple[tuple[str, int | bool | float], ...] = ()
    code: str = ""

    def text(self) -> str:
        """Return the complete source with line directives."""
        lines = [
            f"#include <{header}>" for name, header in _HEADERS.items() if self._mentions(name)
        ]
        lines += _PRELUDE
        if any(map(self._mentions, _SMALL_NAMES)):
            lines += ['#line 1 "narrow_types.cuh"', read_kernel("elementwise/narrow_types.cuh")]
        lines += [f"using {alias} = {name};" for alias, name in self.types]
        lines += [_constant(name, value) for name, value in self.constants]
        if self.code:
            lines += ['#line 1 "generated"', _inlined(self.code, "generated")]
        return "\n".join([*lines, f'#line 1 "{self.file}"', read_kernel(self.file)])

    def _mentions(self, name: str) -> bool:
        """Whether a C++ type is an element type, or one that a Cast between others rounds to."""
        return name in self.code or any(name == each for _, each in self.types)


def _constant(name: str, value: int | bool | float) -> str:
    if isinstance(value, bool):
        return f"constexpr bool {name} = {str(value).lower()};"
    kind = "int" if isinstance(value, int) else "float"
    return f"constexpr {kind} {name} = {value!r};"


def literal(number: float | int | bool) -> str:
    """Return a number as C++, in a type that holds it."""
    if isinstance(number, float):
        if isnan(number):
            return "NAN"
        if isinf(number):
            return "INFINITY" if number > 0 else "-INFINITY"
        return repr(number)
    if number == -(2**63):
        return "(-0x7fffffffffffffffLL - 1)"
    return str(number).lower() + ("ULL" if number > 2**63 - 1 else "")


def read_kernel(file: str) -> str:
    """Return a file of `kernels/`, or a user's source, with #include lines resolved."""
    return _complete(KERNELS, file)


@cache
def _complete(folder: Path, file: str) -> str:
    return _inlined(_read(folder, file), file)


@cache
def _read(folder: Path, file: str) -> str:
    """Return a file of a folder, read once: threads that compile wait for the GIL to read.

    A folder's files do not change while it is `KERNELS`.
    """
    if isinstance(file, UserSource):
        return file.text
    return (folder / file).read_text(encoding="utf-8")


def _inlined(text: str, file: str) -> str:
    def inline(match: re.Match[str]) -> str:
        line = text.count("\n", 0, match.start()) + 2
        return f'#line 1 "{match[1]}"\n{read_kernel(match[1])}\n#line {line} "{file}"'

    return _INCLUDE.sub(inline, text)


# ── what kernels take: the parameters of an entry and the structs among them ─────────────────────

_ENTRY = re.compile(r'extern "C" __global__ void\b')
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_QUALIFIER = re.compile(r"\b(?:const|volatile|__restrict__|__grid_constant__)\b")
_MACRO = re.compile(r"\b(\w+)\((\w+)\)")
_BLOCK = re.compile(r"[^;{}]*\{[^{}]*\}")
_BRACE = re.compile(r"[{}]")
_WORD = re.compile(r"\w+")
_STRUCT = re.compile(r"struct (?:alignas\([^)]*\) )?(\w+)")
_STRUCT_BODY = re.compile(_STRUCT.pattern + r"\s*\{")
_FUNCTION = re.compile(r"\b(?!__launch_bounds__|alignas)(\w+)\s*\(")
#: What has braces, but nothing in them that is called by a name; and `#define`, `#include`, ….
_NAMELESS = re.compile(r"\benum\b|\boperator\b|=\s*$")
_DIRECTIVE = re.compile(r"^#(?:define (\w+)|\w+)((?:\\\n|.)*)$", re.MULTILINE)
_CALL = re.compile(r"\b(\w+)\s*\(")
#: A macro of one line, and one of any number.
_LINE_MACRO = re.compile(r"^#define (\w+)\((\w+)\)(.*)$", re.MULTILINE)
_GROUP_MACRO = re.compile(r"^#define (\w+)\((\w+)\)((?:\\\n|.)*)$", re.MULTILINE)
_MEMBER = re.compile(r"(\w+)\s*(?:\[(\w+)\])?\s*(?:=.*)?")
#: Element types by all their C++ names.
DTYPES: Mapping[str, DType] = MappingProxyType(
    {name: dtype for dtype, name in C_TYPES.items()}
    | {"int": int32, "long long": int64, "short": int16, "u32": uint32}
    | {"unsigned": uint32, "unsigned int": uint32, "unsigned long long": uint64}
)

#: The struct in `ptx/tma.cuh` that the driver encodes.
TENSOR_MAP = "TensorMap"


@record
class Parameter:
    """A parameter of a kernel.

    Attributes:
        name: its name.
        type: its C++ type without qualifiers; for a pointer, the pointee's.
        is_pointer: whether it is an address.
    """

    name: str
    type: str
    is_pointer: bool


@record
class Member:
    """A member of a struct.

    Attributes:
        name: its name.
        type: its C++ type.
        length: of an array: a number, or the name of a constant; empty for a scalar.
    """

    name: str
    type: str
    length: str


@dataclass(frozen=True, slots=True, eq=False)
class KernelSignature:
    """The parameters of a kernel; cached, so that equal signatures are identical.

    Attributes:
        file: the file in `kernels/`.
        entry: its ``extern "C"`` function.
        parameters: by name, in order.
        structs: the members of every struct passed by value, nested ones included.
        lengths: names of the constants that are array lengths.
    """

    file: str
    entry: str
    parameters: Mapping[str, Parameter]
    structs: Mapping[str, tuple[Member, ...]]
    lengths: frozenset[str]

    @property
    def title(self) -> str:
        """File and entry, for messages."""
        return f"{self.file}: {self.entry}"


def is_reversible(file: str) -> bool:
    """Whether the blocks of a file's kernels take their items in either order; see `order.cuh`."""
    return "order.cuh" in _files(KERNELS, file)


def begins_early(file: str, entry: str) -> bool:
    """Whether a kernel waits for its predecessor itself, and so may start before it ends (PDL).

    Raises:
        KernelError: there is no such file, or it has braces that are not understood.
    """
    return entry in _waiting(KERNELS, file)


def signature_of(file: str, entry: str, code: str = "") -> KernelSignature:
    """Return the signature of a kernel.

    Args:
        file: the file in `kernels/`.
        entry: the entry point.
        code: generated code, whose macros may repeat groups of parameters.

    Raises:
        KernelError: the file has no such function, or a macro is undefined.
    """
    macros = _macros(KERNELS, file, entry)
    counts = tuple((name, _repeated(name, code, file, entry)) for name in macros)
    return _signature(KERNELS, file, entry, counts)


@cache
def _text(folder: Path, file: str) -> str:
    """Return a file without comments, and without its headers: most are those of other files."""
    return _COMMENT.sub("", _read(folder, file))


@cache
def _files(folder: Path, file: str) -> tuple[str, ...]:
    """Return a file behind its headers, each once."""
    headers = (_files(folder, found[1]) for found in _INCLUDE.finditer(_text(folder, file)))
    return tuple(dict.fromkeys([*chain.from_iterable(headers), file]))


@cache
def _declared(folder: Path, file: str, entry: str) -> str:
    """Return the parameter list of a kernel."""
    for text in (_text(folder, each) for each in _files(folder, file)):
        for found in _ENTRY.finditer(text):
            head = text[found.end() : text.index("{", found.end())]
            name = _named(entry, _CALL.finditer(head))
            if name is not None:
                return head[name.end() : head.rindex(")")]
    raise KernelError(f'{file}: no extern "C" kernel {entry!r}', file=file)


@cache
def _macros(folder: Path, file: str, entry: str) -> tuple[str, ...]:
    """Return the generated macros that repeat groups of a kernel's parameters."""
    return tuple(macro[1] for macro in _MACRO.finditer(_declared(folder, file, entry)))


@cache
def _waiting(folder: Path, file: str) -> frozenset[str]:
    """Return the functions of a file that call `grid_dependency_sync`, directly or indirectly."""
    blocks = [block for each in _files(folder, file) for block in _top_level(folder, each)]
    waiting, found = set[str](), {"grid_dependency_sync"}
    while found:
        waiting |= found
        found = {n for n, body in blocks if n not in waiting and _calls(body, found)}
    return frozenset(waiting)


def _calls(body: str, names: Set[str]) -> bool:
    """Whether the body of a function names one of others."""
    return any(name in body for name in names) and not names.isdisjoint(_WORD.findall(body))


@cache
def _top_level(folder: Path, file: str) -> tuple[tuple[str, str], ...]:
    """Return the functions, macros and structs of a file: name and body.

    Raises:
        KernelError: a brace of a file of `kernels/` opens none of them: what is in it, or behind
            it, would be overlooked. Users write what they like.
    """
    text = _text(folder, file)
    blocks = [(line[1], line[2]) for line in _DIRECTIVE.finditer(text) if line[1]]
    text, at = _DIRECTIVE.sub("", text), 0
    while (opening := text.find("{", at)) >= 0:
        body = _body(text, opening + 1)
        head = text[at:opening].rpartition(";")[2]
        name = _STRUCT.search(head) or _FUNCTION.search(head)
        is_whole = head.count("(") == head.count(")") and (name or _NAMELESS.search(head))
        if not is_whole and not isinstance(file, UserSource):
            found = " ".join(head.split())
            raise KernelError(f"{file}: no function or struct begins: {found} {{", file=file)
        if name is not None:
            blocks.append((name[1], body))
        at = opening + 1 + len(body) + 1
    return tuple(blocks)


def _repeated(macro: str, code: str, file: str, entry: str) -> int:
    """Return how often a generated macro, ``#define M(X) X(0) X(1)``, repeats its argument."""
    found = _named(macro, _LINE_MACRO.finditer(code))
    if found is None:
        raise KernelError(f"{file}: {entry}: no code defines the macro {macro}", file=file)
    return len(re.findall(rf"\b{found[2]}\(\d+\)", found[3]))


def _named(name: str, found: Iterable[re.Match[str]]) -> re.Match[str] | None:
    """Return the first of some matches whose first group is a name."""
    return next((each for each in found if each[1] == name), None)


@cache
def _signature(
    folder: Path, file: str, entry: str, counts: tuple[tuple[str, int], ...]
) -> KernelSignature:
    """Return the signature for these numbers of repetitions of groups of parameters, by macro."""
    texts = [_text(folder, each) for each in _files(folder, file)]
    declared = _declared(folder, file, entry)
    repeated = dict(counts)

    def expanded(macro: re.Match[str]) -> str:
        group = _named(macro[2], chain.from_iterable(map(_GROUP_MACRO.finditer, texts)))
        if group is None:
            raise KernelError(f"{file}: {entry}: no macro {macro[2]}", file=file)
        body = group[3].replace("\\\n", " ")
        return "".join(body.replace(f"##{group[2]}", str(i)) for i in range(repeated[macro[1]]))

    parameters = [_parameter(one) for one in _MACRO.sub(expanded, declared).split(",")]
    values = (p.type for p in parameters if not p.is_pointer and p.type != TENSOR_MAP)
    structs = dict(_structs(_bodies(folder, file), values))
    named = {parameter.name: parameter for parameter in parameters}
    lengths = frozenset(member.length for members in structs.values() for member in members)
    return KernelSignature(file, entry, MappingProxyType(named), MappingProxyType(structs), lengths)


def _parameter(declared: str) -> Parameter:
    *words, name = _QUALIFIER.sub(" ", declared).replace("*", " * ").split()
    return Parameter(name, " ".join(word for word in words if word != "*"), "*" in words)


def _bodies(folder: Path, file: str) -> Mapping[str, tuple[str, int]]:
    """Return where the bodies of a file's structs begin, by name: a text and a place in it."""
    found: dict[str, tuple[str, int]] = {}
    for each in reversed(_files(folder, file)):
        found.update(_own_bodies(folder, each))
    return found


@cache
def _own_bodies(folder: Path, file: str) -> Mapping[str, tuple[str, int]]:
    text = _text(folder, file)
    heads = reversed(list(_STRUCT_BODY.finditer(text)))
    return {head[1]: (text, head.end()) for head in heads}


def _structs(
    bodies: Mapping[str, tuple[str, int]], types: Iterator[str]
) -> Iterator[tuple[str, tuple[Member, ...]]]:
    """Yield the members of the structs among these types, nested ones included."""
    for name in dict.fromkeys(types):
        if name in bodies:
            members = tuple(_members(_body(*bodies[name])))
            yield name, members
            yield from _structs(bodies, (member.type for member in members))


def _body(text: str, start: int) -> str:
    """Return the text in the braces opened before `start`.

    If they are not closed, this is all that follows, and the compiler says what is wrong.
    """
    depth = 1
    for brace in _BRACE.finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return text[start : brace.start()]
    return text[start:]


def _members(body: str) -> Iterator[Member]:
    while (plain := _BLOCK.sub("", body)) != body:  # functions are not members
        body = plain
    for statement in body.split(";"):
        first, *others = statement.split(",")
        *words, name = first.replace(" [", "[").split() or [""]
        for declarator in (name, *others) if words else ():
            found = _MEMBER.fullmatch(declarator.strip())
            if found is not None:
                yield Member(found[1], " ".join(words), found[2] or "")
