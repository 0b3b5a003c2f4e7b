"""Where the host's device was: `tercet.plugin` has it for other packages."""

from .plan.host import HOST, array

__all__ = ["HOST", "array"]
