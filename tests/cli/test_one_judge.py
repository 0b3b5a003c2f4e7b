"""A planted error is accepted by no function that compares, whoever made it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper

import tercet
from tercet.tools.compare import compare
from tercet.tools.export import export
from tercet.tools.runners import onnxruntime_runner, replay
from tercet.tools.workshop.planted import planted

from .models import model_of, tensor

pytest.importorskip("onnxruntime")

PAIR = ["numpy", "onnxruntime"]
ERRORS = [name for name, _ in planted(np.linspace(-1, 1, 40, dtype=np.float32).reshape(4, 10))]
#: Whether a function says that all is well.
ACCEPTED: dict[str, Callable[[Any], bool]] = {
    "compare": lambda model: tercet.compare(model, PAIR, dims={"batch": 4}, repeat=0).ok,
    "compare_layers": lambda model: tercet.compare_layers(model, PAIR, dims={"batch": 4}).ok,
    "cumulative": lambda model: tercet.compare_layers(
        model, PAIR, dims={"batch": 4}, cumulative=True
    ).ok,
    "bisect": lambda model: tercet.bisect(
        model, PAIR, dims={"batch": 4}, reduce=False
    ).fault == "none",
    "bench": lambda model: tercet.bench(
        model, ["onnxruntime"], dims={"batch": 4}, duration=0.01, warm_up=0.0
    ).cases[0].verdict == "ok",
    "simplify": lambda model: tercet.simplify(model, dims={"batch": 4}).ok,
    "keep_float32": lambda model: tercet.keep_float32(model, 1e-3, dims={"batch": 4}).ok,
}  # fmt: skip


#: The tolerance that `keep_float32` is given above, by its own measure; the others are given none.
TOLERATED = {"keep_float32": 1e-3}


@contextmanager
def wrong(monkeypatch: pytest.MonkeyPatch, error: str) -> Iterator[list[float]]:
    """Have an error planted in what onnxruntime, half precision or a file just written gives.

    Yields:
        How far off the outputs were, by their greatest magnitude.
    """
    apart: list[float] = []

    def spoilt(found: Mapping[str, Any]) -> dict[str, Any]:
        if "scores" not in found:
            return dict(found)
        right = np.asarray(found["scores"])
        made = next(made for name, made in planted(right) if name == error)
        if (made.shape, made.dtype) != (right.shape, right.dtype):
            apart.append(np.inf)
        elif not np.array_equal(made, right):  # the absolute of what has no sign is no error
            off = float(np.max(np.abs(made - right)) / np.max(np.abs(right)))
            apart.append(off if off == off else np.inf)
        return {**found, "scores": made}

    of_runtime, of_backend = onnxruntime_runner.OnnxRuntime.run, replay.BackendPlayer.run

    def by_backend(player: Any, graph: Any, feeds: Any) -> Any:
        found = of_backend(player, graph, feeds)
        return spoilt(found) if player.precision == "float16" else found

    def loaded(source: Any, *given: Any, **more: Any) -> Any:
        model = tercet.load(source, *given, **more)
        if isinstance(source, ModelProto) and source.producer_name != "tests":
            run = model.run
            model.run = lambda *given, **more: spoilt(run(*given, **more))  # pyright: ignore[reportAttributeAccessIssue]
        return model

    with monkeypatch.context() as patch:
        patch.setattr(
            onnxruntime_runner.OnnxRuntime,
            "run",
            lambda self, feeds: spoilt(of_runtime(self, feeds)),
        )
        patch.setattr(replay.BackendPlayer, "run", by_backend)
        patch.setattr(export, "load", loaded)
        yield apart


def head() -> ModelProto:
    """The last layers of a classifier: what is before them makes no output any more wrong."""
    rng = np.random.default_rng(1)
    constants = {
        "w": rng.standard_normal((10, 64)).astype(np.float32) / 4,
        "b": rng.standard_normal(10).astype(np.float32) / 4,
    }
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="fc", transB=1),
        helper.make_node("Softmax", ["y"], ["scores"], name="softmax"),
    ]
    inputs, outputs = [tensor("x", ["batch", 64])], [tensor("scores", ["batch", 10])]
    return model_of(nodes, inputs, outputs, constants)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let onnxruntime run in this process: to start one for each error takes the longest."""
    for module in (compare, replay):
        monkeypatch.setattr(module, "process_for", lambda *_: None)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", ACCEPTED)
def test_no_planted_error_is_accepted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    accepts, model, count = ACCEPTED[name], head(), 0
    assert accepts(model)
    accepted: list[str] = []
    for error in ERRORS:
        with wrong(monkeypatch, error) as apart:
            is_accepted = accepts(model)
        if apart and max(apart) > TOLERATED.get(name, 0.0):
            count += 1
            accepted += [error] if is_accepted else []
    assert not accepted
    assert count > 10
