"""The command line: parse, resolve, call one function of :mod:`nccltune.api`, render. The only importer of click and rich."""

import sys
from typing import Any

import click

from nccltune import __version__
from nccltune.cli import _config, _errors, _variables

# Command name -> module; imported only when asked for, so that --help stays light.
COMMANDS = {
    "scan": "nccltune.cli.scan",
    "fit": "nccltune.cli.fit",
    "calibrate": "nccltune.cli.calibrate",
    "predict": "nccltune.cli.predict",
    "emit": "nccltune.cli.emit",
    "check": "nccltune.cli.check",
    "validate": "nccltune.cli.validate",
    "models": "nccltune.cli.models",
    "topology": "nccltune.cli.topology",
    "doctor": "nccltune.cli.doctor",
    "import": "nccltune.cli.import_",
    "config": "nccltune.cli.config",
}


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Commands in the order of use, not of the alphabet."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command; None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        return _variables.load(cmd_name)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Suggest the nearest command for an unknown one."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            ctx.fail(f"No such command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 110,
    },
    invoke_without_command=False,
)
@click.version_option(__version__, prog_name="nccltune")
@click.option("--config", type=click.Path(), help="Configuration file [default: ./nccltune.toml, then the user's].")
@click.pass_context
def cli(ctx: click.Context, config: str | None) -> None:
    """Measure NCCL all-reduce settings, predict EAGLE-3 verify time and draft-token counts, emit what is worth exporting.

    \b
    nccltune scan --model kimi-k2.5 --tokens 1-16 -o run    measure this machine
    nccltune predict --draft-tokens 1-8 --run run           verify time, tokens/s, best draft-token count
    nccltune emit --run run -o nccl.env                     what the launch script sources

    \b
    Exit codes: 0 done; 1 failed; 2 wrong usage or input; 3 quality gate failed; 4 validation out of tolerance;
    5 this machine cannot do it; 124 time limit; 130 interrupted (what is done is saved).
    """
    for warning in _variables.unknown_variables():
        click.echo(f"warning: {warning}", err=True)
    ctx.default_map = _config.default_map(config)


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit with the documented code."""
    sys.exit(_errors.run(cli, argv))
