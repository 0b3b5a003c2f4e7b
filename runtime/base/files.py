"""Writing files: as a whole or not at all, through no link, and under names that none foresees."""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

#: Flags of a file that must be new. Windows lacks links to follow, and has texts to leave alone.
_OPTIONAL = [getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY")]
_NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY | sum(_OPTIONAL)


@contextmanager
def replacing(path: Path, *, mode: int = 0o666) -> Generator[BinaryIO]:
    """Yield a stream whose bytes become the file once all are there; until then it is untouched.

    Whoever has the old file open or mapped keeps it as it was, so a model can be written over
    itself. A link is replaced, not followed. What is not a plain file, such as a pipe, is written
    straight to.

    Args:
        path: the file, in a folder that is there.
        mode: permissions of the new file, less those that the umask takes.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    if _is_special(path):
        with path.open("wb") as stream:
            yield stream
        return
    draft = path.with_name(f".{token_hex(8)}.part")
    try:
        with os.fdopen(os.open(draft, _NEW, mode), "wb") as stream:
            yield stream
        os.replace(draft, path)
    except BaseException as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(draft)):
            error.filename, error.filename2 = str(path), None
        raise


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file as `replacing` does."""
    with replacing(path) as stream:
        stream.write(data)


def write_text(path: Path, text: str) -> None:
    """Write a file of UTF-8 as `replacing` does; a lone surrogate becomes an escape sequence."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def _is_special(path: Path) -> bool:
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False
