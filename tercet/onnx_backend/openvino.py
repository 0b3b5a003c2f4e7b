"""ONNX's backend interface with OpenVINO before numpy: a module as its `Runner` takes it."""

from .base import TercetBackend


class Backend(TercetBackend):
    """The interface as a class, as which `Runner` takes it, too."""

    backend = "openvino"


is_compatible = Backend.is_compatible
prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
