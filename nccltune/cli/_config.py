"""``nccltune.toml``: defaults below the command line and the NCCLTUNE_* variables. One table per command."""

import difflib
import os
import tomllib
from pathlib import Path
from typing import Any

import click

from nccltune.cli import _variables
from nccltune.errors import InputError

FILE = "nccltune.toml"


def config_file(given: str | None) -> Path | None:
    """The file in use: --config, $NCCLTUNE_CONFIG, ./nccltune.toml, then the user's folder; None without one."""
    named = given or os.environ.get("NCCLTUNE_CONFIG")
    if named:
        if not Path(named).is_file():
            raise InputError(f"configuration file {named} does not exist", "", "correct --config or NCCLTUNE_CONFIG")
        return Path(named)
    from nccltune.registry import user_root

    return next((path for path in (Path(FILE), user_root() / FILE) if path.is_file()), None)


def default_map(given: str | None) -> dict[str, Any]:
    """Read the configuration as click's default map; unknown tables and keys, and values of no use, are an error."""
    from nccltune.cli import COMMANDS

    path = config_file(given)
    if path is None:
        return {}
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read", str(error), "correct the file") from error
    result: dict[str, Any] = {}
    for name, values in document.items():
        if name in COMMANDS and not isinstance(values, dict):
            raise InputError(f"{path} has a value for '{name}'", "a command has a table", f"write [{name}] and its options below")  # fmt: skip
        if name not in COMMANDS:
            raise _unknown(path, f"'{name}', which is no command", name, list(COMMANDS), "tables")
        result[name] = _table(path, _variables.load(name), (name,), values)
    return result


def _table(path: Path, command: click.Command, names: tuple[str, ...], values: dict[str, Any]) -> dict[str, Any]:
    """Turn one table into defaults by parameter name; a group of commands has a table for each."""
    where = ".".join(names)
    below = command.commands if isinstance(command, click.Group) else {}
    known = {_variables.long_name(option): option for option in _variables.options(command)}
    result: dict[str, Any] = {}
    for key, value in values.items():
        if key in below and isinstance(value, dict):
            result[key] = _table(path, below[key], (*names, key), value)
            continue
        option = known.get(key.replace("_", "-"))
        if option is None or option.name is None:
            allowed = sorted([*known, *below])
            raise _unknown(path, f"'{key}' under [{where}]", key, allowed, "tables" if below else "options")
        result[option.name] = _value(path, f"'{key}' under [{where}]", command, option, value)
    return result


def _value(path: Path, what: str, command: click.Command, option: click.Option, value: Any) -> Any:
    """Return a value as click takes it: lists of ``1-8,16`` options are joined, everything is tried on the option."""
    if isinstance(value, list) and not option.multiple:
        value = ",".join(str(part) for part in value)
    if isinstance(value, bool) != option.is_flag or isinstance(value, dict):
        wanted = "true or false" if option.is_flag else "a value, not true or false or a table"
        raise InputError(
            f"{path} has {what} = {value!r}", f"--{_variables.long_name(option)} takes {wanted}", "correct the value"
        )
    if not option.is_flag:
        value = [str(part) for part in value] if isinstance(value, list) else str(value)
    try:
        option.type_cast_value(click.Context(command), value)
    except click.UsageError as error:
        raise InputError(f"{path} has {what} = {value!r}", error.message, "correct the value") from error
    return value


def _unknown(path: Path, what: str, name: str, known: list[str], kind: str) -> InputError:
    close = difflib.get_close_matches(name, known, n=1)
    return InputError(
        f"{path} has {what}",
        f"{kind} are {', '.join(known)}",
        f"did you mean {close[0]}?" if close else "correct the name",
    )
