"""The TensorRT libraries: finding them, their versions, and their messages."""

from __future__ import annotations

import ctypes
import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...runtime.base.record import record
from ...runtime.errors import BackendUnavailable
from .products import PRODUCTS, LibraryProduct

if TYPE_CHECKING:
    import tensorrt as trt

#: Environment variable: a product's module, or a folder with its Python package or libraries.
VARIABLE = "TERCET_TENSORRT"
_INSTALL = "pip install 'tercet[tensorrt]', or 'tercet[tensorrt-rtx]' for GeForce and RTX GPUs"
#: Maximum number of messages kept for an error.
_KEPT = 20


@record
class TensorrtLibrary:
    """TensorRT or TensorRT-RTX, loaded into this process.

    Attributes:
        product: which of the two it is.
        version: such as ``11.4.0.1``.
        file: path of its package.
        module: the package.
        messages: the newest warnings and errors.
        logger: the logger for its calls, which writes to `messages`.
    """

    product: LibraryProduct
    version: str
    file: str
    module: Any
    messages: deque[str]
    logger: trt.ILogger

    def __str__(self) -> str:
        return f"{self.product.name} {self.version}"

    @property
    def trt(self):  # a module: both libraries have the names of one stub
        """The package, typed as TensorRT's."""
        if TYPE_CHECKING:
            import tensorrt

            return tensorrt
        return self.module

    def take_message(self) -> str:
        """Return the first error, else the newest message, and clear all of them."""
        errors = [text for text in self.messages if text.startswith("error: ")]
        newest = [*self.messages][-1:]
        self.messages.clear()
        return (errors[:1] or newest or ["no reason given"])[0].removeprefix("error: ")


@cache
def load() -> TensorrtLibrary:
    """Load TensorRT, or else TensorRT-RTX, once per process; needs no GPU.

    `VARIABLE` names the one to use, or a folder that contains it.

    Raises:
        BackendUnavailable: neither is installed with its libraries in a supported version.
    """
    products, folder = _wanted(os.environ.get(VARIABLE, ""))
    missing: list[str] = []
    for product in products:
        try:
            with _reaching(folder, product):
                module = _imported(product.modules)
        except (ImportError, OSError) as error:
            missing.append(f"the package {product.modules[0]} is not installed ({error})")
            continue
        found = str(getattr(module, "__version__", "") or "an unknown version")
        if found.startswith(f"{product.major}."):
            return opened(product, found, module)
        missing.append(f"{product.name} {product.major} is needed, {found} is installed")
    raise BackendUnavailable("tensorrt", "; ".join(missing), _INSTALL)


def opened(product: LibraryProduct, version: str, module: Any) -> TensorrtLibrary:
    """Return a loaded package with its own logger."""
    messages: deque[str] = deque(maxlen=_KEPT)
    file = str(getattr(module, "__file__", "") or "")
    logger = _logger(module, messages)
    module.init_libnvinfer_plugins(logger, "")  # some operators are built-in plug-ins
    return TensorrtLibrary(product, version, file, module, messages, logger)


def _wanted(named: str) -> tuple[Sequence[LibraryProduct], Path | None]:
    """Return the products to look for, and the folder to search."""
    chosen = [product for product in PRODUCTS if named in product.modules]
    if chosen or not named:
        return chosen or PRODUCTS, None
    folder = Path(named)
    if not folder.is_dir():
        names = " or ".join(product.modules[0] for product in PRODUCTS)
        missing = f"{VARIABLE}={named} is not a folder"
        raise BackendUnavailable("tensorrt", missing, f"set it to a folder, {names}")
    return PRODUCTS, folder


@contextmanager
def _reaching(folder: Path | None, product: LibraryProduct) -> Iterator[None]:
    """Make a product importable from a folder, after loading its shared libraries."""
    if folder is None:
        yield
        return
    for name in product.files:
        for file in sorted(folder.glob(f"**/{name}.{product.major}"))[:1]:
            ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
    packages = (found.parent for m in product.modules for found in folder.glob(f"**/{m}/"))
    places = [str(folder), *map(str, packages)]
    sys.path[:0] = places
    try:
        yield
    finally:
        for place in places:
            sys.path.remove(place)


def _imported(names: Sequence[str]) -> Any:
    """Return the first of some modules that can be imported.

    Raises:
        ImportError, OSError: the error of one that exists, else the first error.
    """
    errors: list[ImportError | OSError] = []
    for name in names:
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            errors.append(error)
        except (ImportError, OSError) as error:
            errors.insert(0, error)
    raise errors[0]


def _logger(module: Any, messages: deque[str]) -> trt.ILogger:
    """Return a logger that keeps warnings and errors; the library's own prints them."""
    severity = module.ILogger.Severity
    kinds = {
        severity.INTERNAL_ERROR: "error: ",
        severity.ERROR: "error: ",
        severity.WARNING: "warning: ",
    }

    class Kept(module.ILogger):
        def __init__(self) -> None:
            module.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            """Keep a message; the library calls this, from any thread."""
            if severity in kinds:
                messages.append(kinds[severity] + " ".join(msg.split()))

    return Kept()
