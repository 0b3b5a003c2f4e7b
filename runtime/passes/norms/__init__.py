"""Passes over normalizations, scales and shifts."""
