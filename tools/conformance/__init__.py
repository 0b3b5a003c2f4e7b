"""ONNX's own test suite on one backend: `tercet conformance`, and docs/conformance.md."""
