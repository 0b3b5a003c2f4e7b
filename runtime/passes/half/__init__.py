"""Passes to and from floats of 16 bits, and the ranges that they go by."""
