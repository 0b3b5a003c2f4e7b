"""The registry of recipes, and the choice among several algorithms of an operator."""
