"""The CUDA driver: device, memory, compiler, launches, timing."""
