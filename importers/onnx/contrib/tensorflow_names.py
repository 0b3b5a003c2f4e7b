"""How operators of TensorFlow are called that tf2onnx leaves as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from .catalogue import TENSORFLOW
from .declaration import Results, contrib

Function = TypeVar("Function", bound=Callable[..., Results])


def operator(name: str, *, outputs: tuple[int, int] = (1, 1)) -> Callable[[Function], Function]:
    """Declare one without a domain, and in that of custom operators."""

    def declare(function: Function) -> Function:
        named = contrib(name, domain=TENSORFLOW, outputs=outputs)(function)
        return contrib(name, domain="", outputs=outputs)(named)

    return declare
