"""``nccltune.toml``: defaults below the command line and the NCCLTUNE_* variables. One table per command."""

import os
import sys
import tomllib
from pathlib import Path
from typing import Any

from nccltune.errors import InputError


def config_file(given: str | None) -> Path | None:
    """The file in use: --config, $NCCLTUNE_CONFIG, ./nccltune.toml, then the user's folder; None without one."""
    named = given or os.environ.get("NCCLTUNE_CONFIG")
    if named:
        if not Path(named).is_file():
            raise InputError(f"configuration file {named} does not exist", "", "correct --config or NCCLTUNE_CONFIG")
        return Path(named)
    from nccltune.registry import user_root

    for path in (Path("nccltune.toml"), user_root() / "nccltune.toml"):
        if path.is_file():
            return path
    return None


def default_map(given: str | None) -> dict[str, Any]:
    """Read the configuration as click's default map; unknown tables and keys are an error."""
    path = config_file(given)
    _warn_unknown_variables()
    if path is None:
        return {}
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read", str(error), "correct the file") from error
    import importlib

    from nccltune.cli import COMMANDS

    result: dict[str, Any] = {}
    for table, values in document.items():
        if table not in COMMANDS or not isinstance(values, dict):
            raise InputError(
                f"{path} has '{table}', which is no command", f"tables are {', '.join(COMMANDS)}", "correct the name"
            )
        command = importlib.import_module(COMMANDS[table]).command
        known = {name for p in command.params for name in [p.name]}
        for key, value in values.items():
            name = key.replace("-", "_")
            if name not in known:
                raise InputError(
                    f"{path} has '{key}' under [{table}]",
                    f"options are {', '.join(sorted(n for n in known if n))}",
                    "correct the name",
                )
            result.setdefault(table, {})[name] = value
    return result


def _warn_unknown_variables() -> None:
    """A misspelt NCCLTUNE_ variable would otherwise change nothing without a word."""
    from nccltune.cli import COMMANDS

    known = tuple(f"NCCLTUNE_{command.upper()}_" for command in COMMANDS)
    single = {"NCCLTUNE_CONFIG", "NCCLTUNE_DATA_PATH", "NCCLTUNE_DEBUG", "NCCLTUNE_FAULT"}
    for name in sorted(os.environ):
        if name.startswith("NCCLTUNE_") and name not in single and not name.startswith(known):
            print(
                f"warning: {name} is set but is no nccltune variable (they are NCCLTUNE_<COMMAND>_<OPTION>)",
                file=sys.stderr,
            )
