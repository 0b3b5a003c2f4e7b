"""What was measured once, on disk: a file for each result, so that nobody waits for anybody.

A run that is interrupted has kept everything that it measured; what is damaged is measured again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

VERSION = 1


@dataclass(frozen=True, slots=True)
class Records:
    """Results by key, in a folder that several processes may read and write.

    Attributes:
        folder: where they lie; it need not exist, and one that cannot be written is no error.
    """

    folder: Path

    def load(self, key: str) -> dict[str, Any] | None:
        """Return the result of a key; None where there is none, or none that can be read."""
        try:
            entry: Any = json.loads(self._file(key).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        if not isinstance(entry, dict):
            return None
        found = cast(dict[str, Any], entry)
        return found if (found.get("key"), found.get("version")) == (key, VERSION) else None

    def store(self, key: str, entry: Mapping[str, Any]) -> None:
        """Write a result so that others see all of it or nothing; a full disk is no error."""
        file = self._file(key)
        scrap = file.with_suffix(f".{os.getpid()}")
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"version": VERSION, "key": key, **entry}, indent=1)
            scrap.write_text(text, "utf-8")
            scrap.replace(file)

    def _file(self, key: str) -> Path:
        return self.folder / f"{sha256(key.encode()).hexdigest()[:40]}.json"
