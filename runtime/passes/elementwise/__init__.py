"""Passes over elementwise operators."""
