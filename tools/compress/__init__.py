"""tercet compress: fewer bytes of weights, as a model of ONNX's own operators."""
