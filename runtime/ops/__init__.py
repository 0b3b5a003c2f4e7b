"""The operators of ONNX, one file per family: declaration and shape rule."""

from . import elementwise, gather, reduce, shape

__all__ = ["elementwise", "gather", "reduce", "shape"]
