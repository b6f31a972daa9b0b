"""``nccltune doctor``: this machine in one page."""

import shlex

import click

from nccltune.cli import _console, _options
from nccltune.doctor import Diagnosis, diagnose
from nccltune.errors import InputError
from nccltune.schemas.common import header

_STYLE = {"ok": "green", "warning": "yellow", "problem": "bold red"}
_TOPIC_WIDTH = 12


@click.command("doctor")
@click.option("--libnccl", metavar="PATH", help="The libnccl file to look at [default: the one torch loads].")
@click.option("--model", metavar="NAME", help="Model to be served: decides whether the engine fuses its all-reduce.")
@click.option("--topology", metavar="NAME", help="Answer the engine question for another machine than this one.")
@click.option("--engine-args", default="", metavar="TEXT", help="The SGLang flags that will be used, in one string.")
@_options.common
def command(
    libnccl: str | None,
    model: str | None,
    topology: str | None,
    engine_args: str,
    as_json: bool,
    verbose: bool,
    **_common: bool,
) -> None:
    """Show this machine in one page, what stands in the way, and whether NCCL settings reach the engine.

    \b
    nccltune doctor
    nccltune doctor --model kimi-k2.5 --engine-args "--disable-custom-all-reduce"
    nccltune doctor --topology rtx-pro-6000-x8 --json
    """
    try:
        flags = shlex.split(engine_args)
    except ValueError as error:
        raise InputError("--engine-args cannot be read", str(error), "close its quotes") from error
    diagnosis = diagnose(libnccl=libnccl, model=model, topology=topology, engine_flags=flags)
    if as_json:
        _console.print_json({**header("nccltune.diagnosis", 1), **diagnosis.to_json()})
        return
    _show(diagnosis, verbose)


def _show(diagnosis: Diagnosis, verbose: bool) -> None:
    """Print one line a finding, with why and what to do under those that need it."""
    console = _console.stdout()
    for finding in diagnosis.findings:
        console.print(f"{finding.status:<8}", style=_STYLE[finding.status], end="")
        _line(f" {finding.topic:<{_TOPIC_WIDTH}} {finding.what}")
        for label, text in (("why", finding.why), ("do", finding.do)):
            if text:
                _line(f"{'':<{_TOPIC_WIDTH + 10}}{label + ':':<4} {text}")
    if verbose:
        machine = diagnosis.facts.machine
        _line(
            f"host     {machine.os}, kernel {machine.kernel}, {machine.cpu_model}, {machine.num_cpus} CPUs, Python {machine.python}"
        )
    _line("\nOn this machine:")
    for ability in diagnosis.abilities:
        _line(f"  {'yes' if ability.possible else 'no':<4} {ability.command:<26} {ability.why}")


def _line(text: str) -> None:
    _console.stdout().print(text, markup=False, soft_wrap=True)
