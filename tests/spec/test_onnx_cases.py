"""ONNX's own cases for every operator that numpy has: as a model, loaded and run like any other.

A case passes within its own tolerance. Half floats may besides be two units in the last place off:
the expectations round after every node, and some tolerances are finer than bfloat16 itself.
`EXPECTED` lists the cases that fail, with the reason; a test fails where one of them passes, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tercet
from tercet.backends.numpy.elementwise import ELEMENTWISE
from tercet.backends.numpy.registry import BUILDERS, KERNELS
from tercet.importers.onnx import load
from tercet.runtime.dtypes import bfloat16, float16
from tercet.runtime.op import OPERATORS

from .cases import Case, array_of, cases_by_operator

Array = np.ndarray[Any, Any]

IMPLEMENTED = sorted(
    key
    for key, operator in OPERATORS.items()
    if operator in KERNELS or operator in BUILDERS or operator in ELEMENTWISE
)

#: The cases that fail, by reason.
EXPECTED = {
    "shapes that depend on the data": """
        test_affine_grid_2d_expanded
        test_affine_grid_2d_align_corners_expanded
        test_affine_grid_3d_expanded
        test_affine_grid_3d_align_corners_expanded
        test_blackmanwindow_expanded
        test_blackmanwindow_symmetric_expanded
        test_center_crop_pad_crop_expanded
        test_center_crop_pad_pad_expanded
        test_center_crop_pad_crop_and_pad_expanded
        test_center_crop_pad_crop_axes_hwc_expanded
        test_center_crop_pad_crop_negative_axes_hwc_expanded
        test_center_crop_pad_crop_axes_chw_expanded
        test_hammingwindow_expanded
        test_hammingwindow_symmetric_expanded
        test_hannwindow_expanded
        test_hannwindow_symmetric_expanded
        test_range_float_type_positive_delta_expanded
        test_range_float16_type_positive_delta_expanded
        test_range_bfloat16_type_positive_delta_expanded
        test_range_int32_type_negative_delta_expanded
        test_reduce_l2_do_not_keepdims_example_expanded
        test_reduce_l2_do_not_keepdims_random_expanded
        test_reduce_l2_keep_dims_example_expanded
        test_reduce_l2_keep_dims_random_expanded
        test_reduce_l2_negative_axes_keep_dims_example_expanded
        test_reduce_l2_negative_axes_keep_dims_random_expanded
        test_reduce_l2_empty_set_expanded
        test_reduce_log_sum_desc_axes_expanded
        test_reduce_log_sum_asc_axes_expanded
        test_reduce_log_sum_negative_axes_expanded
        test_reduce_log_sum_empty_set_expanded
        test_reduce_log_sum_exp_do_not_keepdims_example_expanded
        test_reduce_log_sum_exp_do_not_keepdims_random_expanded
        test_reduce_log_sum_exp_keepdims_example_expanded
        test_reduce_log_sum_exp_keepdims_random_expanded
        test_reduce_log_sum_exp_negative_axes_keepdims_example_expanded
        test_reduce_log_sum_exp_negative_axes_keepdims_random_expanded
        test_reduce_log_sum_exp_empty_set_expanded
        test_unique_sorted_without_axis
        test_unique_not_sorted_without_axis
        test_unique_sorted_with_axis
        test_unique_sorted_with_axis_3d
        test_unique_sorted_with_negative_axis
        test_unique_length_1
    """,
    "Scan": """
        test_linear_attention_linear_expanded
        test_linear_attention_gated_expanded
        test_linear_attention_gated_per_head_decay_expanded
        test_linear_attention_delta_expanded
        test_linear_attention_gated_delta_expanded
        test_linear_attention_gated_delta_beta_scalar_expanded
        test_linear_attention_gated_delta_gqa_expanded
        test_linear_attention_gated_delta_mqa_expanded
        test_linear_attention_decode_step_expanded
        test_linear_attention_prefill_with_past_expanded
        test_linear_attention_no_past_explicit_zeros_expanded
        test_linear_attention_explicit_scale_expanded
        test_linear_attention_fp16_expanded
        test_linear_attention_linear_t1_no_past_expanded
    """,
    "sequences and optionals": """
        test_identity_sequence
        test_identity_opt
    """,
    "strings": """
        test_equal_string
        test_equal_string_broadcast
        test_ai_onnx_ml_label_encoder_string_int
        test_ai_onnx_ml_label_encoder_string_int_no_default
        test_ai_onnx_ml_label_encoder_tensor_mapping
        test_ai_onnx_ml_label_encoder_tensor_value_only_mapping
    """,
}

REASONS = {name: reason for reason, names in EXPECTED.items() for name in names.split()}


#: Cases of Dropout that draw numbers; the other operators of chance say so themselves.
DRAWN = {
    "test_training_dropout",
    "test_training_dropout_mask",
    "test_training_dropout_default",
    "test_training_dropout_default_mask",
}


def is_random(case: Case) -> bool:
    """Whether numbers are drawn, so that shapes and dtypes are all there is to compare."""
    nodes = load(case.model).graph.walk()
    return case.name in DRAWN or any(not node.op.deterministic for node in nodes)


def differences(got: Any, want: Any, case: Case, where: str) -> Iterator[str]:
    """Yield what is wrong with a result: nothing where it is right."""
    if isinstance(want, list):
        if not isinstance(got, list | tuple) or len(got) != len(want):
            yield f"{where}: {got!r} instead of a list of {len(want)}"
            return
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            yield from differences(a, b, case, f"{where}[{i}]")
    elif want is None:
        if got is not None:
            yield f"{where}: {got!r} instead of nothing"
    elif got.dtype != want.dtype or got.shape != want.shape:
        yield f"{where}: {got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    elif want.dtype.kind == "O":
        if got.tolist() != want.tolist():
            yield f"{where}: {got.tolist()} instead of {want.tolist()}"
    elif not is_close(got, want, case) and not is_random(case):
        yield f"{where}: {got.ravel()[:8]} instead of {want.ravel()[:8]}"


def is_close(got: Array, want: Array, case: Case) -> bool:
    rtol = case.rtol
    if want.dtype in (float16, bfloat16):
        rtol = max(rtol, 2 * float(ml_dtypes.finfo(want.dtype).eps))
    if want.dtype.isbuiltin != 1:
        got, want = got.astype(np.float64), want.astype(np.float64)
    return np.allclose(got, want, rtol, case.atol, equal_nan=want.dtype.kind in "fc")


def failures(case: Case) -> Iterator[str]:
    """Yield why a case fails: nothing where it passes."""
    values = zip(case.model.graph.input, map(array_of, case.inputs), strict=False)
    try:
        with tercet.load(case.model) as model:
            results = model.run({formal.name: value for formal, value in values})
    except tercet.TercetError as error:
        yield f"{type(error).__name__}: {error}"
        return
    for (name, got), want in zip(results.items(), map(array_of, case.outputs), strict=True):
        yield from differences(got, want, case, name)


@pytest.mark.parametrize("operator", IMPLEMENTED, ids=lambda key: "::".join(filter(None, key)))
def test_cases(operator: tuple[str, str]) -> None:
    wrong: list[str] = []
    for case in cases_by_operator().get(operator, ()):
        found = list(failures(case))
        if found and case.name not in REASONS:
            wrong.append(f"{case.name}: {'; '.join(found)}")
        if not found and case.name in REASONS:
            wrong.append(f"{case.name} passes, but EXPECTED has it under '{REASONS[case.name]}'")
    assert not wrong, "\n" + "\n".join(wrong)


def test_expected_cases_exist() -> None:
    names = {case.name for key in IMPLEMENTED for case in cases_by_operator().get(key, ())}
    assert not sorted(REASONS.keys() - names)
