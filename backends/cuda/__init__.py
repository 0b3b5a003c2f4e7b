"""CUDA kernels of this project, compiled by NVRTC and launched through cuda.core."""
