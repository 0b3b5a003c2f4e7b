"""Former location of the backend interface; packages import it from `tercet.plugin`."""

from .plan.backend import BuildContext, Claim, Decline, Formats, Step, View
from .plan.format import Format

__all__ = ["BuildContext", "Claim", "Decline", "Format", "Formats", "Step", "View"]
