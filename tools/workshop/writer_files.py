"""Write small graphs with control flow, using libraries in which people program them.

    pip install spox onnxruntime
    python -m tercet.tools.workshop.writer_files spox tests/producers/converted
    pip install torch onnxscript onnxruntime
    python -m tercet.tools.workshop.writer_files torch tests/producers/converted
    pip install hummingbird-ml onnx onnxruntime
    python -m tercet.tools.workshop.writer_files hummingbird tests/producers/converted

Next to each file is an .npz file with inputs and the results of onnxruntime's CPU provider.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx

from .converter_files import Made, drawn, write


def from_spox() -> Iterator[Made]:
    """Yield a loop that stacks its iteration number, which spox declares as a list, and an If."""
    spox, op = import_module("spox"), import_module("spox.opset.ai.onnx.v21")

    def floats(value: Any) -> Any:
        return op.cast(value, to=np.float32)

    def step(number: Any, going: Any, value: Any) -> list[Any]:
        scaled = op.mul(value, op.const(np.float32(1.5)))
        return [op.const(np.array(True)), op.add(scaled, floats(number)), op.add(number, number)]

    x = spox.argument(spox.Tensor(np.float32, ("n", 4)))
    bound = op.const(np.float32(0))
    (chosen,) = op.if_(
        op.less(op.reduce_sum(x, keepdims=False), bound),
        then_branch=lambda: [op.neg(x)],
        else_branch=lambda: [op.relu(x)],
    )
    last, numbers = op.loop(op.const(np.int64(3)), None, [chosen], body=step)
    model = spox.build({"x": x}, {"last": last, "numbers": numbers})
    yield "spox_loop", model, {"x": drawn(3, 4)}


def from_torch() -> Iterator[Made]:
    """Yield torch.cond inside one another, and torch's while_loop, which ends by its data."""
    torch = import_module("torch")
    loop = import_module("torch._higher_order_ops.while_loop").while_loop
    torch.manual_seed(0)

    class Flow(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            def large(x: Any) -> Any:
                return torch.cond(x.mean() > 1, lambda x: self.linear(x), lambda x: x.cos(), (x,))

            return torch.cond(x.sum() > 0, large, lambda x: x.sin(), (x,))

    class GrowingLoop(torch.nn.Module):
        def forward(self, count: Any, x: Any) -> Any:
            return loop(
                lambda count, x: x.abs().max() < 9,
                lambda count, x: (count + 1, x * 2 - count),
                (count, x),
            )

    x = np.abs(drawn(3, 4))
    for name, network, feeds in (
        ("torch_branches", Flow(), {"x": x}),
        ("torch_loop", GrowingLoop(), {"count": np.array(0), "x": x}),
    ):
        program = torch.onnx.export(
            network.eval(),
            tuple(map(torch.from_numpy, feeds.values())),
            input_names=list(feeds),
            dynamo=True,
        )
        model = program.model_proto
        _drop_origins(model.graph)
        yield name, model, feeds


def _drop_origins(graph: onnx.GraphProto) -> None:
    """Drop the lines and files that nodes come from, also those of bodies."""
    for node in graph.node:
        node.ClearField("doc_string")
        node.ClearField("metadata_props")
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _drop_origins(attribute.g)


def from_hummingbird() -> Iterator[Made]:
    """Yield a forest, whose trees look up their nodes level by level."""
    convert, torch = import_module("hummingbird.ml").convert, import_module("torch")
    forests = import_module("sklearn.ensemble")
    x = drawn(90, 4)
    forest = forests.RandomForestClassifier(5, max_depth=3, random_state=0).fit(
        x, np.arange(90) % 3
    )
    options = {"tree_implementation": "tree_trav"}
    # Hummingbird traces with TorchScript, which torch.onnx.export no longer does by default.
    with mock.patch("torch.onnx.export", partial(torch.onnx.export, dynamo=False)):
        model = convert(forest, "onnx", x[:7], extra_config=options).model
    yield "hummingbird_forest", model, {model.graph.input[0].name: x[:7]}


MAKERS: dict[str, Callable[[], Iterator[Made]]] = {
    "hummingbird": from_hummingbird,
    "spox": from_spox,
    "torch": from_torch,
}

if __name__ == "__main__":
    write(MAKERS[sys.argv[1]](), Path(sys.argv[2]))
