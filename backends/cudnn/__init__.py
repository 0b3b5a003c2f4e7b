"""Fused cuDNN graphs, with the kernels of `cuda` for everything else."""
