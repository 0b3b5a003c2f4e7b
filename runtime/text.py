"""Safe text for terminals: names come from files and may contain control sequences."""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    r"""Return `text` with every non-printable character as an escape sequence.

    That includes control characters (which move the cursor, set a terminal's title, ...), marks
    that change the direction of writing or have no width, lone surrogates, and separators other
    than the space: everything for which `str.isprintable` is false. ``\x1b[2J`` is what remains of
    a sequence that would clear the screen.

    Args:
        text: any text.
        keep: characters that stay unchanged.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _escaped(c) for c in text)


def message(text: str) -> str:
    """Return `text` as a message of one or more lines, all but the first indented.

    So a name with a line break in it cannot imitate another message.
    """
    if text.isprintable():
        return text
    first, *others = printable(text, "\n\t").split("\n")
    return "\n".join([first, *(line if _is_indented(line) else f"  {line}" for line in others)])


def _is_indented(line: str) -> bool:
    return not line or line.startswith(("  ", "\t"))


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")
