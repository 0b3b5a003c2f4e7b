"""Readers of model files: each turns a file into a `Graph`."""
