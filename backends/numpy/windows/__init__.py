"""Windows over images: unfolding, taps, Winograd's transforms."""
