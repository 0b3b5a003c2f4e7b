"""Graphs → files, in any opset that can say it."""
