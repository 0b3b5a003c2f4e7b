"""Objects that hold memory, files or processes until `close`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Never, Self, SupportsIndex

from ..errors import UsageError


class Closable(ABC):
    """A context manager that closes itself."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Release everything; may be called twice."""

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> Never:
        """Refuse to be pickled or copied."""
        raise UsageError(
            f"a {type(self).__name__} cannot be copied or pickled: it holds memory of this "
            "process; load it again where it is needed, such as once in each worker process"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class CheckedClosable(Closable):
    """A `Closable` that cannot be entered once it is closed."""

    __slots__ = ()

    @abstractmethod
    def check_open(self) -> None:
        """Raise UsageError if it is closed."""

    def __enter__(self) -> Self:
        self.check_open()
        return self
