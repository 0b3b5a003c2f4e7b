"""Warnings on the command line: one readable line each, whoever gives them."""

import warnings
from pathlib import Path

import pytest

import tercet
from tercet.tools.common.warned import listening

from .conftest import Tercet


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


#: A file that declares five columns where there are three.
DECLARED_WRONG = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[n, 3] x) => (float[n, 3] y) <float[n, 5] h> { h = Relu(x) y = Exp(h) }
"""


@pytest.mark.parametrize("command", [["compare"], ["compare", "--layers"], ["bisect"]])
def test_a_file_that_declares_wrong_types_is_one_warning(
    command: list[str], tercet: Tercet
) -> None:
    """However many graphs are made of it: in float64, of single steps, of halves."""
    Path("declared.onnxtxt").write_text(DECLARED_WRONG)
    end = tercet(*command, "declared.onnxtxt", "-b", "numpy", "-b", "onnx.reference", "--json")
    assert end.code == 0
    (line,) = end.err.splitlines()
    assert line.startswith("warning: declared.onnxtxt: the file declares types")
    assert [each["message"] for each in end.json["warnings"]] == [line.removeprefix("warning: ")]
