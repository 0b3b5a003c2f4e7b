"""Warnings on the command line: one readable line each, whoever gives them."""

import warnings

import pytest

import tercet
from tercet.tools.common.warned import listening


@pytest.mark.parametrize(
    ("warning", "line"),
    [
        (tercet.ModelWarning("a declared shape is wrong"), "warning: a declared shape is wrong"),
        (
            RuntimeWarning("overflow encountered\n  in exp"),
            "warning: overflow encountered in exp (RuntimeWarning)",
        ),
        (UserWarning("\x1b[31mred"), "warning: \\x1b[31mred (UserWarning)"),
    ],
    ids=["tercet", "numpy", "terminal"],
)
def test_a_warning_is_one_line(
    warning: Warning, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with listening() as heard:
        warnings.simplefilter("always")
        warnings.warn(warning, stacklevel=1)
    assert capsys.readouterr().err.splitlines() == [line]
    assert len(heard.warnings) == isinstance(warning, tercet.TercetWarning)
