"""Samples of onnxruntime's operators: drawn by seed, run here and in onnxruntime's CPU.

A family's table has a `Draw` for each operator: a function of a random generator that returns a
`Sample`. onnxruntime's CPU has many of the operators in float32 alone; `expected` asks it for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

import tercet
from tercet.runtime.ir.dtypes import TO_ONNX, bfloat16, float16, float32
from tercet.runtime.ir.types import Array

DOMAIN = "com.microsoft"
#: What a result may differ by, relative to its greatest element or to 1, by dtype.
TOLERANCE = {np.dtype("float64"): 1e-6, float32: 2e-5, float16: 4e-3, bfloat16: 3e-2}


@dataclass(frozen=True)
class Sample:
    """One node with its data.

    Attributes:
        op: its operator.
        inputs: by name, in the operator's order; None where one is left out.
        attributes: those that are given.
        outputs: which outputs are asked for.
        constants: names of the inputs that are initializers.
        domain: the operator's.
        typed: dtypes of outputs that onnxruntime wants to be told.
        wide: whether onnxruntime's CPU has the operator in float32 only.
        loose: factor of the tolerance.
        counts: which elements of an output are defined, where not all of them are.
    """

    op: str
    inputs: dict[str, Array | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[bool, ...] = (True,)
    constants: tuple[str, ...] = ()
    domain: str = DOMAIN
    wide: bool = False
    typed: dict[int, str] = field(default_factory=dict)
    loose: float = 1.0
    counts: dict[int, Array] = field(default_factory=dict)

    def __str__(self) -> str:
        inputs = ", ".join(
            f"{n}: {x.dtype}{list(x.shape)}" for n, x in self.inputs.items() if x is not None
        )
        return f"{self.op}({inputs}; {self.attributes}; outputs {self.outputs})"

    @property
    def feeds(self) -> dict[str, Array]:
        """What a caller gives."""
        return {n: x for n, x in self.inputs.items() if x is not None and n not in self.constants}


Draw = Callable[[np.random.Generator], Sample]


def model_of(sample: Sample, *, symbolic: bool = False) -> onnx.ModelProto:
    """Return the model of a sample.

    Args:
        sample: the node.
        symbolic: give every axis but the last a symbol of its own.
    """
    outputs = [f"y{i}" if wanted else "" for i, wanted in enumerate(sample.outputs)]
    inputs = [n if x is not None else "" for n, x in sample.inputs.items()]
    while inputs and not inputs[-1]:
        inputs.pop()
    node = helper.make_node(
        sample.op, inputs, outputs, name="node", domain=sample.domain, **sample.attributes
    )
    infos = [
        helper.make_tensor_value_info(n, TO_ONNX[x.dtype], _shape(n, x, symbolic))
        for n, x in sample.feeds.items()
    ]
    weights = [
        onnx.numpy_helper.from_array(x, n)
        for n, x in sample.inputs.items()
        if x is not None and n in sample.constants
    ]
    results = [
        helper.make_tensor_value_info(n, TO_ONNX[np.dtype(sample.typed[i])], None)
        if i in sample.typed
        else onnx.ValueInfoProto(name=n)
        for i, n in enumerate(outputs)
        if n
    ]
    graph = helper.make_graph([node], "g", infos, results, weights)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _shape(name: str, x: Array, symbolic: bool) -> list[int | str]:
    if not symbolic or x.ndim < 2:
        return list(x.shape)
    return [*(f"{name}_{axis}" for axis in range(x.ndim - 1)), x.shape[-1]]


def expected(sample: Sample) -> list[Array]:
    """Return what onnxruntime's CPU computes, in the dtypes that the sample asks for."""
    wider = sample
    if sample.wide:
        inputs = {n: None if x is None else _wide(x) for n, x in sample.inputs.items()}
        typed = dict.fromkeys(sample.typed, "float32")
        wider = replace(sample, inputs=inputs, typed=typed)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model_of(wider).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [np.asarray(each) for each in session.run(None, wider.feeds)]


def _wide(x: Array) -> Array:
    return x.astype(np.float32) if x.dtype in (float16, bfloat16) else x


def check(sample: Sample, *, symbolic: bool = False, **options: Any) -> None:
    """Hold what tercet computes against onnxruntime's CPU.

    Raises:
        AssertionError: with the sample, where they differ.
    """
    against(sample, expected(sample), symbolic=symbolic, **options)


def against(
    sample: Sample, wanted: Sequence[Array], *, symbolic: bool = False, **options: Any
) -> None:
    """Hold what tercet computes against these results."""
    with tercet.load(model_of(sample, symbolic=symbolic), **options) as loaded:
        found = loaded.run(sample.feeds)
    for i, (mine, theirs) in enumerate(zip(found.values(), wanted, strict=True)):
        assert mine.shape == theirs.shape, f"output {i} of {sample}: {mine.shape} {theirs.shape}"
        if not np.issubdtype(theirs.dtype, np.inexact) and theirs.dtype != bfloat16:
            np.testing.assert_array_equal(mine, theirs, err_msg=f"output {i} of {sample}")
            continue
        position = [at for at, wanted in enumerate(sample.outputs) if wanted][i]
        if (counts := sample.counts.get(position)) is not None:
            mine, theirs = (np.where(counts, x, np.zeros((), x.dtype)) for x in (mine, theirs))
        close(mine, theirs, sample, i)


def close(mine: Array, theirs: Array, sample: Sample, i: int) -> None:
    """Hold floats against each other, by the greatest of them."""
    a, b = mine.astype(np.float64), theirs.astype(np.float64)
    finite = np.isfinite(b)
    assert (np.isfinite(a) == finite).all(), f"output {i} of {sample}"
    scale = max(1.0, float(np.abs(b[finite]).max(initial=0)))
    error = float(np.abs(a - b)[finite].max(initial=0)) / scale
    limit = sample.loose * TOLERANCE[mine.dtype]
    assert error <= limit, f"output {i} of {sample}: {error:.2e} > {limit:.2e}"


def unclaimed(sample: Sample) -> list[str]:
    """Return what the cuda backend would not run of a sample, planned without a GPU.

    A scalar says how long something is, which a plan has to know.
    """
    scalars = tuple(n for n, x in sample.inputs.items() if x is not None and not x.ndim)
    sample = replace(sample, constants=(*sample.constants, *scalars))
    found = tercet.inspect(model_of(sample), placement="cuda", target="sm_90a")
    return [
        str(row)
        for row in found.placement or ()
        if row.backend != "plan" and not row.backend.startswith("cuda")
    ]
