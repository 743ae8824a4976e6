"""`tensorwire plan`: what a cluster would do."""

from tensorwire.cli.plan.command import plan

__all__ = ["plan"]
