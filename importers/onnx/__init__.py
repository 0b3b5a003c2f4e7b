"""ONNX files and protos, upgraded to one opset and bound to operators."""
