"""Passes over images: convolutions, poolings, pixels and channels."""
