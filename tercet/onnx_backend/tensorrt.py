"""ONNX's backend interface with TensorRT, then CUDA kernels: a module, and the class `Backend`."""

from .base import interface

Backend, is_compatible, prepare, run_model, run_node, supports_device = interface("tensorrt")
