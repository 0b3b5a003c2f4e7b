"""TensorRT itself: finding the package, its version, and what it says while it works."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from ...runtime.errors import BackendUnavailable

if TYPE_CHECKING:
    import tensorrt as trt

#: The major version whose calls this package uses.
MAJOR = 11
_INSTALL = f"pip install 'tensorrt>={MAJOR},<{MAJOR + 1}'   (needs a GPU that TensorRT supports)"
_PACKAGES = ("tensorrt", "tensorrt-cu13", "tensorrt-cu12")
#: Messages that are kept for an error.
_KEPT = 20


@dataclass(frozen=True, slots=True)
class Library:
    """TensorRT, loaded into this process.

    Attributes:
        version: such as ``11.4.0.1``.
        file: where the package is.
        messages: the newest warnings and errors, as it said them.
        logger: what its calls want; writes to `messages`.
    """

    version: str
    file: str
    messages: deque[str]
    logger: trt.ILogger

    def said(self) -> str:
        """Return the newest error, else the newest message, and forget all of them."""
        errors = [text for text in self.messages if text.startswith("error: ")]
        newest = [*self.messages][-1:]
        self.messages.clear()
        return (errors[-1:] or newest or ["no reason given"])[0].removeprefix("error: ")


@cache
def load() -> Library:
    """Load TensorRT, once a process; needs no GPU.

    Raises:
        BackendUnavailable: it is not installed, lacks a library, or is of another major version.
    """
    try:
        import tensorrt
    except (ImportError, OSError) as error:
        missing = f"the package tensorrt is not installed or lacks its libraries ({error})"
        raise BackendUnavailable("tensorrt", missing, _INSTALL) from error
    found = _version()
    if not found.startswith(f"{MAJOR}."):
        missing = f"TensorRT {MAJOR} is needed, {found or 'an unknown version'} is installed"
        raise BackendUnavailable("tensorrt", missing, _INSTALL)
    return opened(found, str(tensorrt.__file__))


def opened(found: str, file: str) -> Library:
    """Return the loaded package with a logger of its own.

    Args:
        found: its version.
        file: where it is.
    """
    messages: deque[str] = deque(maxlen=_KEPT)
    return Library(found, file, messages, _logger(messages))


def _version() -> str:
    for name in _PACKAGES:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""


def _logger(messages: deque[str]) -> trt.ILogger:
    """Return a logger that keeps warnings and errors; TensorRT's own prints them."""
    import tensorrt as trt

    severity = trt.ILogger.Severity
    kinds = {
        severity.INTERNAL_ERROR: "error: ",
        severity.ERROR: "error: ",
        severity.WARNING: "warning: ",
    }

    class Kept(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: trt.ILogger.Severity, msg: str) -> None:
            """Keep a message; TensorRT calls this, from any thread."""
            if severity in kinds:
                messages.append(kinds[severity] + " ".join(msg.split()))

    return Kept()
