"""OpenVINO's CPU plugin for regions that it runs correctly; numpy runs the rest."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ...runtime.base.cache import Cache
from ...runtime.base.record import record
from ...runtime.options import Options
from ...runtime.plan.backend import Backend
from .. import numpy

if TYPE_CHECKING:
    from pathlib import Path

    from .compiler import RegionCompiler

#: Environment variable: the minimum number of nodes of a region.
MIN_NODES_VARIABLE = "TERCET_OPENVINO_MIN_NODES"


@record
class OpenvinoOptions:
    """Options of the openvino backend.

    Attributes:
        min_nodes: minimum number of nodes of a region without matrix products; 0 for the value of
            `MIN_NODES_VARIABLE`, or 4 if that is not set.
    """

    min_nodes: int = 0


OPTIONS = OpenvinoOptions
USES = ("ranges",)
#: Of what it leaves to numpy.
ALGORITHMS = numpy.ALGORITHMS


def open_backends(options: Options) -> tuple[Backend, ...]:
    """Return the OpenVINO backend, followed by numpy for the nodes that it declines.

    Raises:
        BackendUnavailable: the package is not installed, is too old, or has no CPU plugin.
        UsageError: the value of `MIN_NODES_VARIABLE` is not a number.
    """
    from .library import load

    load()
    from ..regions.regions import min_nodes
    from .backend import OpenvinoBackend

    compiler = _compiler(options.cache / "openvino")
    own = options.of_backend("openvino", OPTIONS)
    minimum = own.min_nodes or min_nodes(MIN_NODES_VARIABLE)
    return OpenvinoBackend(compiler, minimum), *numpy.open_backends(options)


@cache
def _compiler(folder: Path) -> RegionCompiler:
    """Return the compiler of this process; all models share its compiled regions."""
    from .compiler import RegionCompiler
    from .library import load

    return RegionCompiler(load(), Cache(folder))
