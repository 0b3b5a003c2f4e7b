"""Where the backend interface was: `tercet.plugin` has it for other packages."""

from .plan.backend import BuildContext, Claim, Decline, Format, Formats, Step, View

__all__ = ["BuildContext", "Claim", "Decline", "Format", "Formats", "Step", "View"]
