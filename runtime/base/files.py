"""Files: what tells changed ones, and writes that are atomic.

They follow no symbolic links and use unpredictable temporary names.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

#: Flags to create a file. Windows lacks O_NOFOLLOW, and needs O_BINARY.
_OPTIONAL = [getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY")]
_NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY | sum(_OPTIONAL)


@contextmanager
def replacing(path: Path, *, mode: int = 0o666) -> Generator[BinaryIO]:
    """Yield a stream whose bytes replace the file once it is closed; until then it is untouched.

    Whoever has the old file open or mapped keeps its contents, so a model can be written over
    itself. A link is replaced, not followed. Anything but a regular file, such as a pipe, is
    written directly.

    Args:
        path: the file, in an existing folder.
        mode: permissions of the new file, before the umask.

    Raises:
        OSError: it cannot be written; no partial file is left.
    """
    if _is_special(path):
        try:
            with path.open("wb") as stream:
                yield stream
        except OSError as error:
            error.filename = error.filename or str(path)
            raise
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
    """Write a UTF-8 file as `replacing` does; lone surrogates become escape sequences."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def signature(file: str | int) -> tuple[int, ...]:
    """Return what changes with a file: its size, times and number.

    Args:
        file: its path, or a descriptor.
    """
    about = os.stat(file)
    return about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino


def _is_special(path: Path) -> bool:
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False
