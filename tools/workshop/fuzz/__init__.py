"""Fuzzing: files that were damaged on purpose end in a result or in an error that names the place.

``python -m tercet.tools.workshop.fuzz`` runs a campaign. A mutant is made of a seed model by one
change of its structure or of its bytes; a process with limits loads it and, if it can, runs it with
and without the graph's rewrites. A mutant is its campaign's number and its own, so each can be made
again.
"""
