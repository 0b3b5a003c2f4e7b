"""Tuning results on disk, one entry per result, so that processes need no locks.

An interrupted run has kept everything that it measured; damaged entries are measured again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from ....runtime.base.cache import Cache
from ....runtime.base.record import record

VERSION = 1


@record
class Records:
    """Results by key, in a folder that several processes may use.

    Attributes:
        folder: see `Cache`.
    """

    folder: Path

    def load(self, key: str) -> dict[str, Any] | None:
        """Return the result for a key; None if there is none, or it is unreadable."""
        data = Cache(self.folder).read(_name(key))
        if data is None:
            return None
        try:
            entry: Any = json.loads(data)
        except (ValueError, RecursionError):
            return None
        if not isinstance(entry, dict):
            return None
        found = cast(dict[str, Any], entry)
        return found if (found.get("key"), found.get("version")) == (key, VERSION) else None

    def store(self, key: str, entry: Mapping[str, Any]) -> None:
        """Write a result atomically; a full disk is not an error."""
        text = json.dumps({"version": VERSION, "key": key, **entry}, indent=1)
        Cache(self.folder).write(_name(key), text.encode())


def _name(key: str) -> str:
    return f"{sha256(key.encode()).hexdigest()[:40]}.json"
