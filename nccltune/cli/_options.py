"""Option groups shared by commands, each written once."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click


class FiniteRange(click.FloatRange):
    """A number within bounds; unlike click's own, nan (which passes every comparison) and inf are none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; fails with a usage error."""
        if isinstance(value, str) and "_" in value:
            self.fail(f"{value!r} is not a number.", param, ctx)  # Python would read 1_9 as 19
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


F = TypeVar("F", bound=Callable[..., Any])


def common(function: F) -> F:
    """Add --json, -q, -v and --debug (as ``as_json``, ``quiet``, ``verbose``, ``debug``)."""
    for option in (
        click.option("--debug", is_flag=True, help="Show a traceback when something fails."),
        click.option("-v", "--verbose", is_flag=True, help="More detail."),
        click.option("-q", "--quiet", is_flag=True, help="No progress and no hints on stderr."),
        click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout and nothing else there."),
    ):
        function = option(function)
    return function
