"""Ctrl-C on the command line, which ends a command wherever it comes.

Python raises KeyboardInterrupt, which not all code lets through: exceptions of finalizers and of
callbacks of weak references are printed and lost, Python 3.11 turns those of `__set_name__` into
RuntimeError, and C++ code that makes a module of an extension ends the process, or drops them. So
the interrupt waits until such code has ended, and comes again until the command ends.
"""

from __future__ import annotations

import _thread
import _weakrefset
import os
import signal
import time
import weakref
from types import FrameType

#: Seconds until it comes again, where nobody listens and where the command goes on all the same.
SOON, AGAIN = 1e-3, 1.0
#: Code whose exceptions are lost, or become others: what is called when objects die, when a class
#: is made of its attributes, and when an extension makes its module.
_METHODS = ("__del__", "__set_name__")
_IMPORTS = "ExtensionFileLoader."
_CALLBACKS = frozenset({_weakrefset.__file__, weakref.__file__})


def ignores_exceptions(frame: FrameType | None) -> bool:
    """Whether code is running whose exceptions do not reach its callers."""
    while frame is not None:
        code = frame.f_code
        if code.co_name in _METHODS or code.co_filename in _CALLBACKS:
            return True
        if code.co_qualname.startswith(_IMPORTS):
            return True
        frame = frame.f_back
    return False


class Interrupts:
    """Listens to Ctrl-C.

    Attributes:
        came: whether it came.
    """

    def __init__(self) -> None:
        self.came = self._is_over = False
        self._main = 0

    def listen(self) -> None:
        """Handle Ctrl-C in this thread, the main one, unless the process ignores it."""
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._main = _thread.get_ident()
            signal.signal(signal.SIGINT, self._handle)

    def end(self) -> bool:
        """Return whether it came; the command has ended, and another one ends the process."""
        self._is_over = True
        return self.came

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_over:
            os._exit(130)
        self.came = True
        waits = ignores_exceptions(frame)
        # Not threading.Thread, whose locks the interrupted code may hold.
        _thread.start_new_thread(self._repeat, (SOON if waits else AGAIN,))
        if not waits:
            raise KeyboardInterrupt

    def _repeat(self, seconds: float) -> None:
        time.sleep(seconds)
        if self._is_over:
            return
        if hasattr(signal, "pthread_kill"):
            signal.pthread_kill(self._main, signal.SIGINT)  # also ends what waits for the system
        else:
            _thread.interrupt_main()


#: Those of this process.
INTERRUPTS = Interrupts()
