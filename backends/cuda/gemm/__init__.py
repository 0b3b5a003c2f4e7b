"""Matrix products on CUDA cores and tensor cores."""
