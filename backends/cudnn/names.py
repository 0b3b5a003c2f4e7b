"""What users may ask this backend for instead of an algorithm."""

#: Who runs a node, instead of an algorithm: cuDNN, whatever the kernels of cuda would take,
#: or those kernels, by their own choice.
ALGORITHMS = CUDNN, CUDA = "cudnn", "cuda"
