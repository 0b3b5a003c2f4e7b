"""Who runs a model: backends, onnxruntime, onnx.reference, saved results."""
