"""Names that users may request from this backend instead of an algorithm."""

#: What runs a node, instead of an algorithm: cuDNN, even if the cuda kernels would be faster, or
#: the cuda kernels with an algorithm of their choice.
ALGORITHMS = CUDNN, CUDA = "cudnn", "cuda"
