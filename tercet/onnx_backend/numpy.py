"""ONNX's backend interface with the numpy backend: a module, and the class `Backend`."""

from .base import interface

Backend, is_compatible, prepare, run_model, run_node, supports_device = interface("numpy")
