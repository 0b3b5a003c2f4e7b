"""One implementation of ONNX's backend interface for every backend of tercet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto
from onnx.backend import base

from .. import backends
from ..api import load
from ..runtime.errors import BackendUnavailable, InputError, UnsupportedError, UsageError
from ..runtime.options import Options
from ..runtime.session.model import Model, TensorInfo
from .single import model_of

#: Arguments of ONNX's runner for `prepare` that are not options: it uses them to compare results.
_TOLERANCES = frozenset({"rtol", "atol"})


class Prepared(base.BackendRep):
    """A loaded model, as `TercetBackend.prepare` returns it.

    Attributes:
        model: the model itself.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        names = [info.name for info in model.outputs]
        self._outputs = base.namedtupledict("Outputs", names)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model.

        Args:
            inputs: values in the order of the model's inputs, or by name: arrays, lists for
                sequences, dictionaries for maps, None for an optional without element. A single
                array is the only input.
            **kwargs: none are known.

        Returns:
            The outputs as a tuple, whose fields and keys have their names.

        Raises:
            InputError: the inputs do not fit the model.
            UnsupportedError: nodes that the backend does not run.
        """
        _check_no_options(kwargs)
        found = self.model.run(self._feeds(inputs))
        return self._outputs(*found.values())

    def _feeds(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            return {name: host_value(value) for name, value in inputs.items()}
        given = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
        names = [info.name for info in self.model.inputs]
        if len(given) != len(names):
            raise InputError(
                f"{len(given)} inputs were given; the model takes {len(names)}: {', '.join(names)}"
            )
        return {name: host_value(value) for name, value in zip(names, given, strict=True)}

    def close(self) -> None:
        """Give all memory of host and device back."""
        self.model.close()


class TercetBackend(base.Backend):
    """ONNX's backend interface; a subclass names the backend.

    Devices are written as ONNX does, ``CPU`` or ``CUDA:0``; where none is named it is the
    backend's own. Further options, such as ``fallback="numpy"``, are those of `tercet.load`.
    """

    backend: ClassVar[str] = "numpy"

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether the backend can run here, and does so on this device."""
        kind, _, number = device.partition(":")
        wanted = "cpu" if kind == "CPU" else f"{kind.lower()}:{number or 0}"
        return wanted == _device_of(cls.backend)

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "", **kwargs: Any) -> bool:
        """Whether the backend runs every node of a model.

        If shapes of inputs are unknown, this only checks that every operator is known.

        Raises:
            ModelError: the model is not valid.
        """
        if device and not cls.supports_device(device):
            return False
        try:
            with load(model, cls.backend, **_options(kwargs)) as loaded:
                if all(map(_is_static, loaded.inputs)):
                    loaded.prepare()
        except UnsupportedError:
            return False
        return True

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "", **kwargs: Any) -> Prepared:
        """Load a model for one or more runs.

        Raises:
            ModelError: the model is not valid.
            UnsupportedError: it has an operator that tercet does not know.
            BackendUnavailable: the backend cannot run on this machine.
            UsageError: the backend does not run on that device.
        """
        if device and not cls.supports_device(device):
            own = _device_of(cls.backend)
            if own:
                raise UsageError(f"backend '{cls.backend}' runs on {own.upper()}, not on {device}")
        return Prepared(load(model, cls.backend, **_options(kwargs)))

    @classmethod
    def run_model(
        cls, model: ModelProto, inputs: Any, device: str = "", **kwargs: Any
    ) -> tuple[Any, ...]:
        """Load a model and run it once; see `prepare` and `Prepared.run`."""
        prepared = cls.prepare(model, device, **kwargs)
        try:
            return prepared.run(inputs)
        finally:
            prepared.close()

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node.

        Args:
            node: the node; bodies of control flow may read further names of `inputs`.
            inputs: values for the node's inputs in order, or by name. Inputs that the node omits
                are omitted here as well, or None.
            device: see `TercetBackend`.
            outputs_info: dtype and shape of every output; inferred from the inputs if None.
            **kwargs: ``opset_version`` of the node's domain (default: the newest); options of
                `tercet.load`.

        Returns:
            The outputs that the node has a name for; see `Prepared.run`.
        """
        opset = kwargs.pop("opset_version", None)
        feeds = _node_feeds(node, inputs)
        model = model_of(node, feeds, opset, outputs_info)
        return cls.run_model(model, feeds, device, **kwargs)


class Interface(NamedTuple):
    """The names that a module of a backend defines: the class, and its functions."""

    kind: type[TercetBackend]
    is_compatible: Callable[..., bool]
    prepare: Callable[..., Prepared]
    run_model: Callable[..., tuple[Any, ...]]
    run_node: Callable[..., tuple[Any, ...]]
    supports_device: Callable[[str], bool]


def interface(name: str) -> Interface:
    """Return the interface of one of tercet's backends."""
    kind = type("Backend", (TercetBackend,), {"backend": name, "__doc__": TercetBackend.__doc__})
    functions = kind.prepare, kind.run_model, kind.run_node, kind.supports_device
    return Interface(kind, kind.is_compatible, *functions)


def host_value(value: Any) -> Any:
    """Return an input as tercet takes it: strings as an array of `str` objects."""
    if value is None or isinstance(value, Mapping):
        return value
    if isinstance(value, list | tuple):
        return [host_value(each) for each in value]
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind == "U" else array


def _node_feeds(node: NodeProto, inputs: Any) -> dict[str, Any]:
    if isinstance(inputs, Mapping):
        return {name: host_value(value) for name, value in inputs.items()}
    given = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
    present = [name for name in node.input if name]
    names = list(node.input) if len(given) == len(node.input) else present
    if len(given) != len(names):
        raise InputError(
            f"{len(given)} inputs were given; node '{node.name}' ({node.op_type}) takes "
            f"{len(present)}: {', '.join(present)}"
        )
    return {n: host_value(value) for n, value in zip(names, given, strict=True) if n}


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in _TOLERANCES}


def _check_no_options(given: Mapping[str, Any]) -> None:
    for name in given.keys() - _TOLERANCES:
        raise UsageError(f"a run has no option '{name}'; options belong to prepare")


def _is_static(info: TensorInfo) -> bool:
    shape = info.shape
    return info.dtype is not None and shape is not None and all(isinstance(d, int) for d in shape)


@cache
def _device_of(backend: str) -> str:
    """Return ``cpu`` or ``cuda:0``; an empty string if the backend cannot run."""
    try:
        first, *_ = backends.open_backends(backend, Options())
    except BackendUnavailable:
        return ""
    return first.device.name.split()[0]
