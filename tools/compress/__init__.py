"""`tercet compress`: smaller weights, in a model of ONNX's own operators."""
