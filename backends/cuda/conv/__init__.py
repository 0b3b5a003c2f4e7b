"""Convolution algorithms, one file each, and their estimates."""
