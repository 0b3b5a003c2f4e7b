"""Former location of the backend interface; packages import it from `tercet.plugin`."""

from .plan.backend import BuildContext, Claim, Decline, Format, Formats, Step, View

__all__ = ["BuildContext", "Claim", "Decline", "Format", "Formats", "Step", "View"]
