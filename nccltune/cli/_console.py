"""Where output goes: stdout holds the answer, stderr everything else. Colour only on a terminal without NO_COLOR."""

import json
import os
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

_PIPED_WIDTH = 160


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let the command end as for every other output (``_errors.run``); rich alone would exit with 1."""
        raise BrokenPipeError


def stdout() -> Console:
    """Console of the answer; wide and plain when piped."""
    return _console(sys.stdout.isatty(), stderr=False)


def stderr(quiet: bool = False) -> Console:
    """Console of progress, warnings and hints."""
    return _console(sys.stderr.isatty(), stderr=True, quiet=quiet)


def print_json(document: dict[str, Any]) -> None:
    """Print one JSON document on stdout."""
    # Whole before it is printed: never half a document.
    text = json.dumps(document, indent=1, ensure_ascii=True, allow_nan=False)
    sys.stdout.write(text + "\n")


def warn(console: Console, warnings: list[str]) -> None:
    """Print warnings, one line each."""
    for text in warnings:
        console.print(f"warning: {text}", style="yellow", markup=False, highlight=False, soft_wrap=True)


def table(title: str, columns: list[tuple[str, str]], rows: list[list[str]]) -> Table:
    """Build a plain table from (heading, 'left' or 'right') columns and rows of text."""
    result = Table(
        title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold", title_style="bold"
    )
    for heading, justify in columns:
        result.add_column(heading, justify="right" if justify == "right" else "left", no_wrap=True)
    for row in rows:
        result.add_row(*row)
    return result


def _console(is_terminal: bool, *, stderr: bool, quiet: bool = False) -> Console:
    plain = bool(os.environ.get("NO_COLOR"))  # rich alone would still send bold and faint
    return _Console(
        stderr=stderr,
        quiet=quiet,
        highlight=False,
        emoji=False,
        color_system=None if plain else "auto",
        width=None if is_terminal else _PIPED_WIDTH,
        soft_wrap=False,
    )
