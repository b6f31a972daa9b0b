"""``nccltune validate``: predictions against a real engine."""

from pathlib import Path
from typing import Any

import click

from nccltune.cli import _console, _options, _trace, _validation


@click.group()
def command() -> None:
    """Show how far predictions are from a real engine: from measured points, or from servers that it runs.

    \b
    nccltune validate points points.csv --model kimi-k2.5 --run run
    nccltune validate trace decode.trace.json.gz --model kimi-k2.5
    """


@command.command()
@click.argument("file")
@click.option("--model", required=True, metavar="NAME", help="Model file, alias, path, or a Hugging Face config.json.")
@click.option("--run", type=click.Path(), metavar="DIR", help="Run folder whose communication curves are used.")
@click.option("--profile", metavar="FILE", help="Profile of 'nccltune calibrate' to start from.")
@click.option("--topology", metavar="NAME", help="Machine file [default: the run's or profile's].")
@click.option("--drafter", metavar="NAME", help="Drafter file, or its config.json [default: the model's].")
@click.option("--ranks", type=click.IntRange(1, 1024), help="Tensor-parallel ranks [default: the run's].")
@click.option(
    "--context", type=click.IntRange(0, 10_000_000), help="Context of points without one [default: profile's, or 4096]."
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="Largest error of a scored arm; beyond it the exit code is 4.",
)
@click.option("--allow-mixed", is_flag=True, help="Calibrate on points of several engines.")
@_options.common
def points(
    file: str,
    as_json: bool,
    quiet: bool,
    debug: bool,  # noqa: ARG001 - read by the error handler
    verbose: bool,
    **options: Any,
) -> None:
    """Score measured times (CSV): calibrate on the rows with use=calibrate, predict all others, compare.

    No server is started. Exit code 4 when any scored arm is off by more than --tolerance, 3 when none could be scored.

    \b
    nccltune validate points points.csv --model kimi-k2.5 --run run
    nccltune validate points points.csv --model config.json --drafter eagle/config.json --run run --json
    """
    from nccltune import api
    from nccltune.validation.points import gate

    found = api.validate_points(Path(file), **options)
    _validation.show(found, as_json=as_json, verbose=verbose)
    _console.warn(_console.stderr(quiet), found.warnings)
    gate(found)


@command.command()
@click.argument("file")
@click.option("--model", metavar="NAME", help="Model whose number of all-reduces is checked.")
@click.option("--run", type=click.Path(), metavar="DIR", help="Run whose in-forward cost is put beside the traced time.")
@click.option("--setting", metavar="NAME", help="Setting the engine ran with [default: best].")
@click.option("--batch", type=click.IntRange(1, 65536), default=1, show_default=True, help="Requests in the traced forwards.")
@click.option("--draft-tokens", type=click.IntRange(1, 256), default=1, show_default=True, help="Width of the traced verify.")
@_options.common
def trace(
    file: str,
    as_json: bool,
    quiet: bool,
    debug: bool,  # noqa: ARG001 - read by the error handler
    verbose: bool,  # noqa: ARG001 - the report is already whole
    **options: Any,
) -> None:
    """Count and time the all-reduces of one forward in a torch profiler trace or a Nsight Systems CSV.

    Says which all-reduce the engine really used and how one forward was told from the next. Exit code 3 when the
    all-reduces of a forward could not be told.

    \b
    nccltune validate trace decode-TP-0.trace.json.gz --model qwen3-30b-a3b
    nsys stats -r cuda_gpu_trace --format csv report.nsys-rep > trace.csv; nccltune validate trace trace.csv
    nccltune validate trace t.json --model kimi-k2.5 --run run --setting base --batch 4 --draft-tokens 3
    """
    from nccltune import api
    from nccltune.validation.trace import gate

    found = api.validate_trace(Path(file), **options)
    _trace.show(found, as_json=as_json)
    _console.warn(_console.stderr(quiet), found.warnings)
    gate(found)
