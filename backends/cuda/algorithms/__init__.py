"""Which function makes an operator's recipe, and which of several algorithms is taken."""
