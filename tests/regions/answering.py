"""A process that answers, fails, hangs, talks and crashes as it is told."""

from __future__ import annotations

import os
import signal
import time

from tercet.runtime.base import worker
from tercet.runtime.base.worker import Answer


def main(idle: str = "20") -> None:
    worker.IDLE = float(idle)
    busy: list[bool] = []

    def answer(question: Answer) -> Answer:
        busy[:] = [True] if "busy" in question else []
        if "crash" in question:
            os.kill(os.getpid(), getattr(signal, question["crash"]))
        if "leave" in question:
            raise SystemExit(question["leave"])
        if "sleep" in question:
            time.sleep(question["sleep"])
        print("what a library prints")
        return {"heard": question, "process": os.getpid()}

    worker.serve(answer, lambda: bool(busy))
