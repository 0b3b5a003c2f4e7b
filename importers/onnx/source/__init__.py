"""The source of a model: its file, limits, and raw contents."""
