"""Flash attention and fused attention kernels, without a score matrix in memory."""
