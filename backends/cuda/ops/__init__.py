"""Operators by family: one file each, named as in `runtime/ops`."""
