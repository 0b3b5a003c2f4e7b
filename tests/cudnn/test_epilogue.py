"""The kernels for what cuDNN does not fuse; compiled, which needs no GPU."""

from __future__ import annotations

import pytest

from tercet.runtime.backend import Format
from tercet.runtime.ops.conv import Conv
from tercet.runtime.options import Precision

from .convolutions import Case

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.compile import H200, Compiler
from tercet.backends.cudnn.conv import Convolution, Epilogue, describe
from tercet.backends.cudnn.epilogue import epilogue_launch

EPILOGUES = [
    Epilogue(bias=True),
    Epilogue(relu=True),
    Epilogue(residual=True),
    Epilogue(residual=True, bias=True, relu=True),
]


@pytest.mark.parametrize("precision", ["float32", "tf32"])
@pytest.mark.parametrize("epilogue", EPILOGUES, ids=str)
@pytest.mark.parametrize("filters", [1, 3, 8])
def test_it_compiles(epilogue: Epilogue, precision: Precision, filters: int) -> None:
    case = Case(Conv(), (2, 4, 9, 9), (filters, 4, 3, 3))
    convolution = describe(case.graph().nodes[0], precision)
    assert isinstance(convolution, Convolution)
    launch, places = epilogue_launch(convolution, epilogue)
    roles = [places[place] for place in sorted(places)]
    assert roles[:2] == ["y", "y"], "in place"
    assert ("bias" in roles, "residual" in roles) == (epilogue.bias, epilogue.residual)
    assert Compiler(H200).compile(launch.source).get_kernel is not None


def test_four_results_a_thread_where_the_channels_allow() -> None:
    case = Case(Conv(), (2, 4, 9, 9), (8, 4, 2, 2))
    formats: dict[Precision, Format] = {"float32": Format.PLAIN, "tf32": Format.CHANNELS_LAST}
    for precision, format in formats.items():
        convolution = describe(case.graph().nodes[0], precision)
        assert isinstance(convolution, Convolution)
        assert convolution.format is format
        launch, _ = epilogue_launch(convolution, EPILOGUES[-1])
        assert dict(launch.constants)["VECTOR"] == 4
