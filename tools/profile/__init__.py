"""`tercet profile`: rows, rooflines, traces, memory."""
