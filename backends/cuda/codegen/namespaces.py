"""Several epilogues in one kernel."""

from __future__ import annotations

from collections.abc import Mapping

from .epilogue import Epilogue


def in_namespaces(named: Mapping[str, Epilogue], last: Epilogue) -> str:
    """Return the code of epilogues behind all headers.

    Args:
        named: epilogues, each in a namespace of this name.
        last: the one in no namespace.
    """
    lines = [one.code.splitlines() for one in (*named.values(), last)]
    headers = dict.fromkeys(line for code in lines for line in code if _is_header(line))
    *bodies, end = ("\n".join(line for line in code if not _is_header(line)) for code in lines)
    inner = (f"namespace {name} {{\n{body}\n}}" for name, body in zip(named, bodies, strict=True))
    return "\n".join((*headers, *inner, end))


def _is_header(line: str) -> bool:
    return line.startswith("#include")
