"""How far results are apart, and whether rounding explains it."""
