"""Former location of the host device; packages import it from `tercet.plugin`."""

from .plan.host import HOST, array

__all__ = ["HOST", "array"]
