"""Sliding windows over images: im2col, taps, Winograd transforms."""
