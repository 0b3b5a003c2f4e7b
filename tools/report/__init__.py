"""`tercet report`: one HTML file of saved results."""
