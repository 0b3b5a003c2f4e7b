"""Programs in place of the one that runs onnxruntime in a separate process: some end or hang.

Which models onnxruntime itself does not survive depends on its version and on the CPU.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tercet.tools.runners import onnxruntime_server

#: Ends where a model with an Einsum reads an empty tensor.
DYING = """
    class Dying(Session):
        def __init__(self, model, setup):
            super().__init__(model, setup)
            data = Path(model).read_bytes() if isinstance(model, str) else model
            self._is_fatal = b"Einsum" in data

        def run(self, feeds, wanted):
            if self._is_fatal and not all(data.size for data in feeds.values()):
                os.kill(os.getpid(), 8)  # SIGFPE
            return super().run(feeds, wanted)

    Session = Dying
"""
#: Never answers where a model is run.
ENDLESS = """
    class Endless(Session):
        def run(self, feeds, wanted):
            while True:
                pass

    Session = Endless
"""
#: Refuses every model once it has imported tercet, which takes longer than onnxruntime.
ALONE = """
    class Alone(Session):
        def __init__(self, model, setup):
            if "tercet" in sys.modules:
                raise RuntimeError("this process has imported tercet")
            super().__init__(model, setup)

    Session = Alone
"""


def use(monkeypatch: pytest.MonkeyPatch, folder: Path, lines: str) -> None:
    """Start all further processes with a program that has more lines; it is written to a folder."""
    text, start = Path(onnxruntime_server.__file__).read_text(), "if __name__ =="
    assert start in text
    program = folder / "program.py"
    program.write_text(text.replace(start, f"{dedent(lines)}\n{start}"))
    monkeypatch.setattr(onnxruntime_server, "__file__", str(program))
