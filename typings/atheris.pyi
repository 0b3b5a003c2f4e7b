from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

def instrument_imports(
    include: Iterable[str] | None = None,
    exclude: Iterable[str] | None = None,
    enable_loader_override: bool = True,
) -> AbstractContextManager[None]: ...
def Setup(
    args: list[str],
    test_one_input: Callable[[bytes], None],
    *,
    custom_mutator: Callable[[bytes, int, int], bytes] | None = None,
) -> list[str]: ...
def Fuzz() -> None: ...
def Mutate(data: bytes, max_size: int) -> bytes: ...
