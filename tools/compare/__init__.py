"""`tercet compare`, of results and of every tensor on the way."""
