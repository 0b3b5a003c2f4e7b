"""The intermediate representation, its passes, and the plan that runs it."""
