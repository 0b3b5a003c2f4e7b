"""Engines and timings on disk, in the user's own cache and nowhere else.

A serialized engine is code: it is read from this folder alone, and only with the checksum that it
was written with. What is damaged counts as absent.
"""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

_HEAD = b"tercet engine 1\n"
_SUM = 32


class Store:
    """A folder of files that are there as a whole or not at all.

    Args:
        folder: made when something is written, for its owner alone.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, name: str) -> bytes | None:
        """Return what was written under a name; None where nothing is, or not what was written."""
        try:
            data = (self.folder / name).read_bytes()
        except OSError:
            return None
        begin = len(_HEAD) + _SUM
        payload = data[begin:]
        is_whole = data[:begin] == _HEAD + sha256(payload).digest()
        return payload if is_whole else None

    def write(self, name: str, payload: bytes) -> None:
        """Write so that others see all of it or nothing; a full or read-only disk is no error."""
        scrap = self.folder / f"{name}.{os.getpid()}"
        with suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            scrap.write_bytes(_HEAD + sha256(payload).digest() + payload)
            scrap.replace(self.folder / name)
        with suppress(OSError):
            scrap.unlink(missing_ok=True)
