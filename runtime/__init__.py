"""The intermediate representation, its passes, and the plans that run it."""
