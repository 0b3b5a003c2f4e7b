"""`tercet compare`: outputs, or every tensor."""
