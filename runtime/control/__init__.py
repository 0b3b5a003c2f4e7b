"""Programs: plans, with control flow and data-dependent shapes handled between them."""
