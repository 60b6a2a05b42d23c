"""Options that take no value look so in the help."""

from typing import Any

from typer.core import TyperCommand, TyperGroup


class _Flags:
    """The common part of a command and a group."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters; a flag takes no value, so its metavar is empty."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params


class Command(_Flags, TyperCommand):
    """One command."""


class Group(_Flags, TyperGroup):
    """A group of commands."""
