"""ONNX's test suite on one backend: `tercet conformance`, and docs/conformance.md."""
