"""What a backend of another package gets wrong is said in terms of the interface."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model

import tercet
from tercet import backends
from tercet.runtime.plan.contract import backends_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "adding_a_backend.md"
(TEXT,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def module(before: str, after: str) -> dict[str, Any]:
    """The backend of the page, changed."""
    assert before in TEXT
    names: dict[str, Any] = {"__name__": __name__}
    exec(TEXT.replace(before, after), names)
    return names


CLAIM = "yield Claim((node,), lambda site: ReluStep())"
PREPARE = "prepare = lambda *_: None"
#: What is changed in the page's backend, and what the error says.
MISTAKES = {
    "no scratch": ("    scratch = 0\n", "", "built no step: ReluStep has no scratch"),
    "no step": ("lambda site: ReluStep()", "lambda site: None", "NoneType has no kernel, scratch"),
    "no function": ("return lambda stream: ", "", "bind returned NoneType, not a function"),
    "no claim": (CLAIM, "yield node", "must yield Claim and Decline; it yielded Node"),
    "not prepared": (
        "    def claim",
        f"    {PREPARE}\n    def claim",
        "no backend: NoneType has no",
    ),
    "no generator": ("def claim(self, ", "claim = lambda *_: None\n    def x(self, ", "NoneType"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after, words = MISTAKES[mistake]
    made = module(before, after)["open_backends"]
    monkeypatch.setattr(backends, "_foreign", lambda: {"toy": lambda: made})
    with pytest.raises(tercet.DeviceError, match="backend 'toy'") as raised:
        tercet.run_op("Relu", np.zeros((2, 3), np.float32), backend="toy")
    assert words in str(raised.value)


def test_claims_that_wait_for_one_another_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them could run by itself."""
    pairs = "zip(graph.nodes[:2], graph.nodes[:1:-1])"
    claims = f"yield from (Claim(some, lambda site: ReluStep()) for some in {pairs}); return"
    made = module(CLAIM, claims)["open_backends"]
    monkeypatch.setattr(backends, "_foreign", lambda: {"toy": lambda: made})
    model = parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        g (float[2] x, float[2] z) => (float[2] y, float[2] w) {
          [a] p = Relu(x)  [b] y = Neg(p)  [c] q = Relu(z)  [d] w = Neg(q)
        }""")
    feeds = dict.fromkeys("xz", np.zeros(2, np.float32))
    with tercet.load(model, "toy") as loaded, pytest.raises(tercet.DeviceError) as raised:
        loaded.run(feeds)
    for words in ("backend 'toy'", "wait for one another", "{'a', 'd'}", "{'b', 'c'}"):
        assert words in str(raised.value)


def test_what_is_opened_is_backends() -> None:
    (backend,) = module("", "")["open_backends"](tercet.Options())
    assert backends_of((backend,)) == (backend,)
    with pytest.raises(TypeError, match="ToyBackend, not a tuple"):
        backends_of(backend)
    for before, words in (("    name = .toy.\n", "name"), ("    device = HOST\n", "device")):
        found = module(re.findall(before, TEXT)[0], "")["open_backends"](tercet.Options())
        with pytest.raises(TypeError, match=f"ToyBackend has no {words}"):
            backends_of(found)
