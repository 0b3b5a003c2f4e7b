"""Latency, throughput and accuracy of models on several runners, at several concurrencies.

Four phases are distinguished. *Load*: from the file to a model that is ready. *Cold*: the first
run, which compiles kernels and packs weights. *Warm*: the second run. *Steady*: all runs after the
warm-up. With one caller, runners take turns, run by run, so that changes in machine speed affect
all of them, and figures are latencies. With several, each runner has the machine to itself while
that many threads call the model concurrently, each with its own plan and stream, and the figure is
throughput.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ...api import Loadable, Operators
from ...arguments import freezing, in_data_dir, public
from ...runtime.base.arguments import instance, number, optional, whole, words
from ...runtime.options import OPTION_RULES, Options
from ..common.console import Say, silent
from ..common.deadline import time_limit
from ..common.inputs import Given, asked
from ..common.shapes import Dims, Shapes
from ..common.threads import use_threads
from ..runners.runners import (
    RunnerSettings,
    check_names,
    check_options,
    default_names,
)
from .bench_arguments import (
    concurrency_rule,
    latencies_rule,
    limits_of,
    models_of,
    saved_rule,
    several,
    sizes_rule,
    sources_rule,
)
from .bench_cases import Bench, BenchCase
from .bench_check import BenchLimits, against, complaints, read_bench, slower
from .bench_series import Schedule, Series


def _precisions(name: str, value: Any) -> tuple[str, ...]:
    """Accept compute precisions, one or several."""
    return tuple(OPTION_RULES["precision"](name, each) for each in words("precisions")(name, value))


@public(
    sources=sources_rule,
    batch=sizes_rule,
    concurrency=concurrency_rule,
    precision=_precisions,
    compare=optional(saved_rule),
    old=optional(saved_rule),
    assert_p50=optional(latencies_rule),
    schedule=optional(instance(Schedule)),
    limits=optional(instance(BenchLimits)),
    assert_ops=optional(whole(0)),
    assert_error=optional(number(minimum=0)),
    assert_ratio=optional(number(above=0)),
)
@in_data_dir
@freezing
def bench(
    sources: Loadable | Sequence[Loadable],
    runners: Sequence[str] | None = None,
    inputs: Given = None,
    *,
    batch: int | Sequence[int] = (),
    precision: str | Sequence[str] = ("float32",),
    concurrency: int | Sequence[int] = (1,),
    duration: float = 2.0,
    warm_up: float = 0.5,
    accuracy: bool = True,
    pipeline: bool = False,
    passes: bool = False,
    compare: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    assert_p50: str | Sequence[str] | Mapping[str, float] | None = None,
    assert_ops: int | None = None,
    assert_error: float | None = None,
    assert_ratio: float | None = None,
    schedule: Schedule | None = None,
    limits: BenchLimits | None = None,
    old: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    seed: int = 0,
    shapes: Shapes = (),
    dims: Dims = (),
    fallback: str | Sequence[str] | None = None,
    skip_unavailable: bool = False,
    freeze: Mapping[str, Any] | None = None,
    operators: Operators | None = None,
    external_data_dir: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    timeout: float | None = None,
    say: Say = silent,
    **options: Any,
) -> Bench:
    """Measure models on several runners.

    Arguments are named like the options of ``tercet bench``, which docs/cli.md describes.

    Args:
        sources: one or several of paths, bytes of files, and `ModelProto`.
        runners: names of backends, ``onnxruntime`` or ``onnx.reference``; if None, every available
            backend and onnxruntime (without it, onnx.reference), but those that cannot run a model.
        inputs: arrays by name or in a list by position; an .npz file or a folder of ONNX test data;
            random ones if None.
        batch: batch sizes; if empty, the model's own, 1 if symbolic.
        precision: compute precision of float32 tensors, one or several.
        concurrency: concurrent callers; 1 measures latency, more measure throughput.
        duration: seconds of steady runs per runner.
        warm_up: seconds of preceding runs that are not measured.
        accuracy: whether to also run every model in float64 and check the results: a wrong one is a
            complaint.
        pipeline: whether to also measure a stream of batches; see `Schedule`.
        passes: whether to also measure the model without each graph pass that rewrites it.
        compare: an earlier benchmark to compare with: a file written by ``tercet bench --json``, or
            `Bench.to_dict`.
        assert_p50: maximum median latency: ``"5ms"``, ``["cudnn=300us"]``, or seconds by
            runner.
        assert_ops: maximum number of steps.
        assert_error: maximum error of tercet's backends.
        assert_ratio: with `compare`: maximum ratio of a median to the earlier one.
        schedule: batch, precision, concurrency, duration, warm_up, accuracy, pipeline and passes as
            one object.
        limits: the assert arguments as one object.
        old: the same as `compare`.
        seed: seed of random inputs.
        shapes: of random inputs, by name: ``{"image": (1, 3, 224, 224)}``.
        dims: sizes of symbolic dimensions of random inputs: ``{"batch": 4}``; 1 if not given.
        fallback: backend for nodes that a tercet backend declines.
        skip_unavailable: skip runners that are unavailable or cannot run the model.
        freeze: arrays by name for inputs that become constants, for all runners; see `tercet.load`.
        operators: custom operators; see `tercet.load`.
        external_data_dir: the folder of the models' external data; their own if None.
        threads: number of CPU threads of each runner; numpy's setting if None.
        timeout: time limit in seconds, after which the cases measured so far are returned; None for
            no limit.
        say: called with a description of each stage.
        **options: further fields of `Options`.

    Raises:
        BackendUnavailable: a runner is unavailable here.
        UnsupportedError: a runner cannot run a model.
        InputError: the inputs do not fit the model.
        ModelError: a model cannot be read.
        UsageError: an unknown runner, or a batch size that a model rejects.
        TimeLimitError: the time limit passed before the first case was measured.
    """
    names = tuple(runners) if runners is not None else default_names()
    check_names(names)
    given = asked(inputs, seed, shapes, dims)
    parts = several(batch) or (None,), several(precision), several(concurrency)
    chosen = schedule or Schedule(*parts, duration, warm_up, accuracy, pipeline, passes)
    kept = limits or BenchLimits(limits_of(assert_p50), assert_ops, assert_error, assert_ratio)
    old = compare if old is None else old
    # Concurrent callers have separate plans.
    options.setdefault("max_plans", max(Options().max_plans, *chosen.concurrency))
    settings = RunnerSettings((), fallback, "float32", options, operators)
    check_options(names, settings)
    series = Series(names, chosen, settings)
    series.skip = skip_unavailable or runners is None
    before = None if old is None else read_bench(old)
    cases: list[BenchCase] = []
    with use_threads(threads), time_limit(timeout, say) as (limit, series.say):
        for source in models_of(sources):
            for case in series.measure(source, given):
                cases.append(case)
    if limit.passed and not cases:
        raise limit.error()
    since = () if before is None else against(before, cases)
    if not cases and series.refused is not None and not skip_unavailable:
        raise series.refused
    wrong = (*complaints(cases, kept), *slower(since, kept))
    return Bench(tuple(cases), series.skipped, series.environment(), wrong, since, limit.stopped)
