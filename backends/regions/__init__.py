"""Regions of nodes for compilers of whole graphs: their nodes, and their ONNX models."""
