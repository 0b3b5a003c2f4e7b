"""Control flow that the GPU decides on."""
