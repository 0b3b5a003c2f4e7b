"""Samples of onnxruntime's operators: drawn by seed, run here and in onnxruntime's CPU.

A family's table has a `Draw` for each operator: a function of a random generator that returns a
`Sample`. All samples of an operator are nodes of one model, so that each runtime makes one session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import helper

import tercet
from tercet.runtime.ir.dtypes import INTEGERS, TO_ONNX, bfloat16, float16, float32
from tercet.runtime.ir.types import Array

from ..unsigned import unsigned

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
        wide: whether onnxruntime's CPU has the operator in float32 only.
        typed: dtypes of outputs that onnxruntime wants to be told.
        loose: factor of the tolerance.
        steps: by how much integers may differ, in a tenth of the elements, where a half may be
            rounded to either side.
        counts: which elements of an output are defined, where not all of them are.
        instead: what the operator computes, of its inputs, where onnxruntime's CPU does not run it.
        shared: outputs that onnxruntime wants to lie where an input does.
        opset: of ONNX; the same one for all samples of an operator.
        known: how many last axes have sizes that the operator has to know, such as heads.
    """

    op: str
    inputs: Mapping[str, Array | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[bool, ...] = (True,)
    constants: tuple[str, ...] = ()
    domain: str = DOMAIN
    wide: bool = False
    typed: dict[int, str] = field(default_factory=dict)
    loose: float = 1.0
    steps: int = 0
    counts: dict[int, Array] = field(default_factory=dict)
    instead: Callable[..., list[Array]] | None = None
    shared: dict[int, str] = field(default_factory=dict)
    opset: int = 21
    known: int = 1

    def __str__(self) -> str:
        inputs = ", ".join(
            f"{n}: {x.dtype}{list(x.shape)}" for n, x in self.inputs.items() if x is not None
        )
        return f"{self.op}({inputs}; {self.attributes}; outputs {self.outputs})"

    @property
    def given(self) -> dict[str, Array]:
        """The inputs that are not left out."""
        return {n: x for n, x in self.inputs.items() if x is not None}

    @property
    def results(self) -> list[int]:
        """The positions of the outputs that are asked for."""
        return [i for i, wanted in enumerate(self.outputs) if wanted]


Draw = Callable[[np.random.Generator], Sample]


def _named(samples: Sample | Sequence[Sample]) -> dict[str, Sample]:
    """Return samples by the prefix of their names: empty for one alone."""
    if isinstance(samples, Sample):
        return {"": samples}
    return {f"s{i}_": sample for i, sample in enumerate(samples)}


def feeds_of(samples: Sample | Sequence[Sample]) -> dict[str, Array]:
    """Return what a caller of `model_of` gives."""
    return {
        prefix + n: x
        for prefix, sample in _named(samples).items()
        for n, x in sample.given.items()
        if n not in sample.constants
    }


def model_of(samples: Sample | Sequence[Sample], *, symbolic: bool = False) -> onnx.ModelProto:
    """Return a model with a node for each sample.

    Args:
        samples: the nodes; the names of one alone are those of its inputs, and y0, y1, ….
        symbolic: give every axis of an input but the last `Sample.known` a separate symbol.
    """
    nodes, results, weights = [], [], []
    for at, sample in _named(samples).items():
        outputs = [f"{at}y{k}" if wanted else "" for k, wanted in enumerate(sample.outputs)]
        inputs = [at + n if x is not None else "" for n, x in sample.inputs.items()]
        while inputs and not inputs[-1]:
            inputs.pop()
        nodes.append(
            helper.make_node(
                sample.op, inputs, outputs, f"{at}node", domain=sample.domain, **sample.attributes
            )
        )
        results += [_result(n, sample.typed.get(k)) for k, n in enumerate(outputs) if n]
        weights += [
            onnx.numpy_helper.from_array(x, at + n)
            for n, x in sample.given.items()
            if n in sample.constants
        ]
    infos = [
        helper.make_tensor_value_info(
            at + n, TO_ONNX[x.dtype], _shape(at + n, x, sample.known if symbolic else x.ndim)
        )
        for at, sample in _named(samples).items()
        for n, x in sample.given.items()
        if n not in sample.constants
    ]
    graph = helper.make_graph(nodes, "g", infos, results, weights)
    (opset,) = {sample.opset for sample in _named(samples).values()}
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _result(name: str, dtype: str | None) -> onnx.ValueInfoProto:
    if dtype is None:
        return onnx.ValueInfoProto(name=name)
    return helper.make_tensor_value_info(name, TO_ONNX[np.dtype(dtype)], None)


def _shape(name: str, x: Array, known: int) -> list[int | str]:
    if x.ndim < 2 or known >= x.ndim:
        return list(x.shape)
    return [*(f"{name}_{axis}" for axis in range(x.ndim - known)), *x.shape[x.ndim - known :]]


def _by_sample(samples: Sequence[Sample], flat: Iterator[Array]) -> list[list[Array]]:
    return [[np.asarray(next(flat)) for _ in sample.results] for sample in samples]


def expected(samples: Sequence[Sample]) -> list[list[Array]]:
    """Return what onnxruntime's CPU computes of each sample; half floats may come in float32."""
    run = [_widened(each) for each in samples if each.instead is None and not each.shared]
    found = iter(_by_sample(run, iter(_onnxruntime(run))) if run else [])
    return [
        sample.instead(*sample.inputs.values())
        if sample.instead
        else _in_place(_widened(sample))
        if sample.shared
        else next(found)
        for sample in samples
    ]


def _in_place(sample: Sample) -> list[Array]:
    """Return onnxruntime's results of a sample whose outputs lie where inputs do."""
    session = _session([sample])
    binding = session.io_binding()
    copies = {name: x.copy() for name, x in feeds_of(sample).items()}  # whose memory is bound
    of_numpy = onnxruntime.OrtValue.ortvalue_from_numpy
    values = {name: of_numpy(x) for name, x in copies.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(f"s0_{name}", value)
    for position in sample.results:
        if position in sample.shared:
            binding.bind_ortvalue_output(f"s0_y{position}", values[sample.shared[position]])
        else:
            binding.bind_output(f"s0_y{position}")
    session.run_with_iobinding(binding)
    return [each.numpy().copy() for each in binding.get_outputs()]


def _onnxruntime(samples: Sequence[Sample]) -> Sequence[Any]:
    samples = [replace(each, inputs=unsigned(each.op, each.inputs)) for each in samples]
    return _session(samples).run(None, feeds_of(samples))


def _session(samples: Sequence[Sample]) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    proto = model_of(samples).SerializeToString()
    return onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])


def _widened(sample: Sample) -> Sample:
    if not sample.wide:
        return sample
    inputs = {n: None if x is None else _wide(x) for n, x in sample.inputs.items()}
    return replace(sample, inputs=inputs, typed=dict.fromkeys(sample.typed, "float32"))


def _wide(x: Array) -> Array:
    return x.astype(np.float32) if x.dtype in (float16, bfloat16) else x


def against(
    samples: Sequence[Sample],
    wanted: Sequence[Sequence[Array]],
    *,
    symbolic: bool = False,
    **options: Any,
) -> None:
    """Hold what tercet computes against these results.

    Raises:
        AssertionError: with the sample, where they differ.
    """
    with tercet.load(model_of(samples, symbolic=symbolic), **options) as loaded:
        found = _by_sample(samples, iter(loaded.run(feeds_of(samples)).values()))
    for sample, mine, theirs in zip(samples, found, wanted, strict=True):
        for position, a, b in zip(sample.results, mine, theirs, strict=True):
            where = f"output {position} of {sample}"
            assert a.shape == b.shape, f"{where}: {a.shape}, expected {b.shape}"
            if (counts := sample.counts.get(position)) is not None:
                a, b = (np.where(counts, x, np.zeros((), x.dtype)) for x in (a, b))
            _close(a, b, sample, where)


def _close(mine: Array, theirs: Array, sample: Sample, where: str) -> None:
    """Hold results against each other, floats by the greatest of them."""
    if mine.dtype not in TOLERANCE and mine.dtype in INTEGERS and sample.steps:
        apart = np.abs(mine.astype(np.int64) - theirs.astype(np.int64))
        assert apart.max(initial=0) <= sample.steps, where
        assert np.count_nonzero(apart) <= 1 + apart.size // 10, where
        return
    if mine.dtype not in TOLERANCE:
        assert mine.dtype == theirs.dtype, where
        np.testing.assert_array_equal(mine, theirs, err_msg=where)
        return
    limits = ml_dtypes.finfo(
        mine.dtype
    )  # half floats may come in float32, where the least number is another
    theirs = np.where(np.isfinite(theirs), np.clip(theirs, limits.min, limits.max), theirs)
    a, b = mine.astype(np.float64), theirs.astype(np.float64)
    finite = np.isfinite(b)
    assert (np.isfinite(a) == finite).all(), where
    np.testing.assert_array_equal(a[~finite], b[~finite], err_msg=where)
    scale = max(1.0, float(np.abs(b[finite]).max(initial=0)))
    error = float(np.abs(a[finite] - b[finite]).max(initial=0)) / scale
    limit = sample.loose * TOLERANCE[mine.dtype]
    assert error <= limit, f"{where}: {error:.2e} > {limit:.2e}"


def unclaimed(samples: Sequence[Sample]) -> list[str]:
    """Return what the cuda backend would not run of samples, planned without a GPU.

    A scalar says how long something is, which a plan has to know.
    """
    fixed = [
        replace(
            each, constants=(*each.constants, *(n for n, x in each.given.items() if not x.ndim))
        )
        for each in samples
    ]
    found = tercet.inspect(model_of(fixed), placement="cuda", target="sm_90a")
    return [
        str(row)
        for row in found.placement or ()
        if row.backend != "plan" and not row.backend.startswith("cuda")
    ]
