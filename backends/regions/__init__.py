"""Regions of nodes for compilers of whole graphs: which nodes go together, and as what model."""
