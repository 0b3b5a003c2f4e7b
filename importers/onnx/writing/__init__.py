"""From graphs to files, in any opset that can express them."""
