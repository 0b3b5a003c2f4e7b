"""Control flow decided by the GPU."""
