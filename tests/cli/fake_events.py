"""A driver whose events say what they are asked for."""

from __future__ import annotations

from typing import Any


class Recorder:
    def record(self, run: Any) -> str:
        run(Stream())
        return "replay"


class Stream:
    handle = 7


class Driver:
    def __init__(self, calls: list[tuple[Any, ...]]) -> None:
        self._calls = calls

    class CUevent_flags:
        CU_EVENT_DEFAULT = 0

    def cuEventCreate(self, flags: int) -> tuple[int, int]:
        self._calls.append(("create", flags))
        return 0, len(self._calls)

    def cuEventRecordWithFlags(self, event: int, stream: int, flags: int) -> tuple[int]:
        self._calls.append(("record", event, flags))
        assert stream == Stream.handle
        return (0,)

    def cuEventElapsedTime(self, begin: int, end: int) -> tuple[int, float]:
        assert (begin, end) == (1, 2)
        return 0, 2.5

    def cuEventDestroy(self, event: int) -> tuple[int]:
        self._calls.append(("destroy", event))
        return (0,)
