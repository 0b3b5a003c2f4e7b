"""Programs: plans, and the control flow and the data-dependent sizes between them."""
