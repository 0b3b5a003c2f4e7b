"""A loaded model: what callers give and get, and the programs that are kept for it."""
