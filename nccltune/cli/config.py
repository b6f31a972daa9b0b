"""``nccltune config``: what every option would be now, and where that comes from."""

from typing import Any

import click
from click.core import ParameterSource

from nccltune.cli import COMMANDS, _config, _console, _options, _variables
from nccltune.schemas.common import header

_SOURCES = {
    ParameterSource.DEFAULT: "default",
    ParameterSource.DEFAULT_MAP: "file",
    ParameterSource.ENVIRONMENT: "variable",
}


@click.group()
def command() -> None:
    """Show defaults set by nccltune.toml and the NCCLTUNE_* variables.

    \b
    nccltune config show
    nccltune config show scan
    """


@command.command()
@click.argument("name", metavar="[COMMAND]", required=False, type=click.Choice(list(COMMANDS)))
@_options.common
@click.pass_context
def show(ctx: click.Context, name: str | None, as_json: bool, **_common: bool) -> None:
    """Show what is set and where: variables beat the file, the command line beats both. With COMMAND, all its options.

    \b
    nccltune config show
    nccltune config show scan
    NCCLTUNE_SCAN_BACKEND=gloo nccltune config show --json
    """
    root = ctx.find_root()
    path = _config.config_file(root.params.get("config"))
    rows = [row for one in ([name] if name else COMMANDS) for row in _rows(root, one)]
    if name is None:
        rows = [row for row in rows if row["source"] != "default"]
    if as_json:
        _console.print_json({**header("nccltune.config", 1), "file": str(path) if path else None, "values": rows})
        return
    out = _console.stdout()
    out.print(f"file: {path or 'none'}", markup=False, soft_wrap=True)
    columns = [("command", "left"), ("option", "left"), ("value", "left"), ("from", "left"), ("variable", "left")]
    cells = [[r["command"], r["option"], _text(r["value"]), r["source"], r["variable"]] for r in rows]
    if cells:
        out.print(_console.table("", columns, cells))
    else:
        out.print("nothing is set: every option has its default")


def _rows(root: click.Context, name: str) -> list[dict[str, Any]]:
    """One row for each option of a command and of those under it."""
    contexts: dict[tuple[str, ...], click.Context] = {(): root}
    rows: list[dict[str, Any]] = []
    for path, one in _variables.walk(_variables.load(name), (name,)):
        context = contexts[path] = click.Context(one, parent=contexts[path[:-1]], info_name=path[-1])
        for option in _variables.options(one):
            value, source = option.consume_value(context, {})
            rows.append(
                {
                    "command": " ".join(path),
                    "option": f"--{_variables.long_name(option)}",
                    "value": value if isinstance(value, str | int | float | list | tuple) else None,
                    "source": _SOURCES[source],
                    "variable": option.envvar,
                }
            )
    return rows


def _text(value: Any) -> str:
    return "" if value is None else " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
