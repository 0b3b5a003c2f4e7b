"""A cache folder that later processes read, protected against entries planted by others.

Cache entries are executed: machine code on a GPU, an engine on the host. So a folder is used only
if it belongs to the user and no other user can write to it, and an entry only if it carries the
digest made with the user's own key. The key is stored in the user's default cache folder and is
readable only by the user.

If any of this fails, everything works without a cache, after one warning that gives the reason.
"""

from __future__ import annotations

import hmac
import os
import stat
import tempfile
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from secrets import token_bytes, token_hex

from ..errors import PerformanceWarning
from . import forks
from .files import replacing
from .record import record
from .warned import warn

_HEAD = b"tercet entry 2\n"
_DIGEST = 32
_KEY_NAME = "key"
_KEY_BYTES = 32
_HAS_OWNERS = hasattr(os, "getuid")

_lock = forks.lock()
_keys: dict[Path, bytes] = {}
_warned: set[Path] = set()


def default_cache() -> Path:
    """Return the folder for compiled kernels and plans: ``$TERCET_CACHE`` or the user's cache."""
    if chosen := os.environ.get("TERCET_CACHE"):
        return Path(chosen)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "tercet"
    try:
        return Path.home() / ".cache" / "tercet"
    except RuntimeError:  # a user without an entry in the user database
        return Path(tempfile.gettempdir()) / f"tercet-{os.getuid() if _HAS_OWNERS else 0}"


@record
class Cache:
    """A folder of named entries that several processes may read and write concurrently.

    A damaged entry, or one of another version or user, counts as absent; a folder that cannot be
    written or disappears is not an error.

    Attributes:
        folder: created on the first write, with access for its owner only.
        key_folder: the folder of the key.
    """

    folder: Path
    key_folder: Path = field(default_factory=default_cache)

    def read(self, name: str) -> bytes | None:
        """Return the bytes written under a name; None if absent or not authentic."""
        try:
            data = (self.folder / name).read_bytes()
        except OSError:
            return None
        if not data.startswith(_HEAD) or (key := self._key()) is None:
            return None
        begin = len(_HEAD) + _DIGEST
        payload = data[begin:]
        ours = hmac.compare_digest(data[len(_HEAD) : begin], _digest(key, name, payload))
        return payload if ours else None

    def write(self, name: str, payload: bytes) -> None:
        """Write an entry atomically."""
        with suppress(OSError):
            make_folder(self.folder)
            key = self._key()
            if key is not None:
                with replacing(self.folder / name, mode=0o600) as stream:
                    stream.write(_HEAD + _digest(key, name, payload) + payload)

    def refusal(self) -> str:
        """Return why the cache is not used, with a remedy; empty if it is used."""
        reasons = (_distrust(folder) for folder in (self.folder, self.key_folder))
        return next(filter(None, reasons), "") or _distrust_above(self.folder.parent)

    def _key(self) -> bytes | None:
        """Return the user's key; None, with a warning, if the folder cannot be trusted."""
        if reason := self.refusal():
            _warn(self.folder, reason)
            return None
        with _lock:
            if self.key_folder not in _keys:
                try:
                    _keys[self.key_folder] = _key_in(self.key_folder)
                except (OSError, ValueError) as error:
                    _warn(self.folder, f"the key of the cache cannot be used: {error}")
                    return None
            return _keys[self.key_folder]


def _digest(key: bytes, name: str, payload: bytes) -> bytes:
    """Return the digest that an entry of this name must start with; it depends on the name."""
    return hmac.digest(key, name.encode() + b"\0" + payload, "sha256")


def _distrust(folder: Path) -> str:
    """Return why others may have written to a folder; empty if not, or if it is absent."""
    if not _HAS_OWNERS:
        return ""
    try:
        found = folder.stat()
    except OSError:
        return ""
    if found.st_uid != os.getuid():
        owner = f"user {found.st_uid}, not to user {os.getuid()} who runs this"
        return f"{folder} belongs to {owner}; name another folder in $TERCET_CACHE"
    if stat.S_ISDIR(found.st_mode) and found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write to {folder}; `chmod go-w {folder}` ends that"
    return ""


def _distrust_above(folder: Path) -> str:
    """Return why others could replace a folder inside this one."""
    try:
        mode = folder.stat().st_mode
    except OSError:
        return ""
    if _HAS_OWNERS and mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX:
        return f"others may write to {folder}; `chmod go-w {folder}` ends that"
    return ""


def _warn(folder: Path, reason: str) -> None:
    if folder not in _warned:
        _warned.add(folder)
        warn(f"nothing is kept from run to run: {reason}", PerformanceWarning)


def _key_in(folder: Path) -> bytes:
    """Return the key stored in a folder; it is created if missing.

    Raises:
        OSError: it cannot be read or written.
        ValueError: it belongs to another user, or others can read it.
    """
    make_folder(folder)
    file = folder / _KEY_NAME
    if not file.exists():
        _make_key(file)
    with os.fdopen(os.open(file, os.O_RDONLY | _READ), "rb") as stream:
        about = os.fstat(stream.fileno())
        if _HAS_OWNERS and (about.st_uid != os.getuid() or about.st_mode & 0o077):
            raise ValueError(f"others have to do with {file}; remove it")
        key = stream.read(_KEY_BYTES + 1)
    if len(key) != _KEY_BYTES:
        raise ValueError(f"{file} is damaged; remove it")
    return key


_READ = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents with access for their owner only, whatever the umask is."""
    if not folder.exists():
        make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _make_key(file: Path) -> None:
    """Create a key atomically; if several processes race, the first one wins."""
    draft = file.with_name(f".{token_hex(8)}.part")
    try:
        with replacing(draft, mode=0o600) as stream:
            stream.write(token_bytes(_KEY_BYTES))
        with suppress(FileExistsError):
            os.link(draft, file)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
