"""``NCCLTUNE_<COMMAND>_<OPTION>``: one variable per option, called after its long spelling (``--dry-run``: DRY_RUN)."""

import difflib
import importlib
import os
from collections.abc import Iterator, Sequence

import click

PREFIX = "NCCLTUNE_"
# Variables that belong to no single option. The last is a test aid of the measuring worker (nccltune/bench/faults.py).
GENERAL = {
    "NCCLTUNE_CONFIG": "configuration file, as --config",
    "NCCLTUNE_DATA_PATH": "folders with models/ and topology/, searched first, separated by ':'",
    "NCCLTUNE_DEBUG": "traceback for every error, as --debug",
    "NCCLTUNE_FAULT": "makes a measuring rank fail on purpose (tests)",
}


def long_name(option: click.Parameter) -> str:
    """Return how people spell an option, without dashes in front: ``dry-run``; an argument's own name."""
    return max(option.opts, key=len).lstrip("-")


def variable_name(path: Sequence[str], option: click.Parameter) -> str:
    """Return the variable of an option: (``models``, ``show``), --ranks -> NCCLTUNE_MODELS_SHOW_RANKS."""
    return PREFIX + "_".join((*path, long_name(option))).replace("-", "_").upper()


def options(command: click.Command) -> list[click.Option]:
    """Return the options of one command that can be given by variable or file; --debug has NCCLTUNE_DEBUG for all."""
    return [param for param in command.params if isinstance(param, click.Option) and param.name != "debug"]


def walk(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield a command and those under it, each with its path."""
    yield path, command
    for name, child in command.commands.items() if isinstance(command, click.Group) else ():
        yield from walk(child, (*path, name))


def bind(command: click.Command, path: tuple[str, ...]) -> click.Command:
    """Give every option of ``command``, and of those under it, its variable."""
    for below, one in walk(command, path):
        for option in options(one):
            option.envvar = variable_name(below, option)
    return command


def load(name: str) -> click.Command:
    """Import the command ``name`` and bind its variables."""
    from nccltune.cli import COMMANDS

    return bind(importlib.import_module(COMMANDS[name]).command, (name,))


def unknown_variables() -> list[str]:
    """Return a warning for each NCCLTUNE_ variable that is set and means nothing: a typo would change nothing in silence.

    Commands are imported only when a variable of theirs is set.
    """
    from nccltune.cli import COMMANDS

    found = sorted(name for name in os.environ if name.startswith(PREFIX) and name not in GENERAL)
    if not found:
        return []
    known: list[str] = []
    for command in COMMANDS:
        if any(name.startswith(f"{PREFIX}{command.upper()}_") for name in found):
            known += [
                variable_name(path, option) for path, one in walk(load(command), (command,)) for option in options(one)
            ]
    return [_warning(name, known) for name in found if name not in known]


def _warning(name: str, known: list[str]) -> str:
    bare = {other.removeprefix(PREFIX): other for other in (*known, *GENERAL)}
    close = difflib.get_close_matches(name.removeprefix(PREFIX), bare, n=1)
    hint = f"; did you mean {bare[close[0]]}?" if close else ": variables are called NCCLTUNE_<COMMAND>_<OPTION>"
    return f"{name} is set but means nothing to nccltune{hint}"
