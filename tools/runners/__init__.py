"""Runners of models: backends, onnxruntime, onnx.reference, saved results."""
