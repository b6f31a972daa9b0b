"""``nccltune calibrate``: engine points into a profile."""

from typing import Any

import click

from nccltune.cli import _console, _options


@click.command()
@click.option("--model", required=True, metavar="NAME", help="Model file, alias or path.")
@click.option(
    "--points",
    type=click.Path(),
    metavar="FILE",
    help="Points: a validation's folder or validation.json, or a CSV: phase,batch_size,time_ms and optionally draft_tokens,context_tokens,accept_length,setting,engine,use,source.",
)
@click.option(
    "--point",
    "given",
    multiple=True,
    metavar="P",
    help="One point: decode:1:11.26 or verify:1:3:18.67, with @SETTING behind it. Repeatable.",
)
@click.option("--run", type=click.Path(), metavar="DIR", help="Run folder whose communication curves are used.")
@click.option("--topology", metavar="NAME", help="Machine file [default: the run's].")
@click.option("--drafter", metavar="NAME", help="Drafter file [default: the model's].")
@click.option(
    "--ranks", type=click.IntRange(1, 1024), help="Tensor-parallel ranks [default: the run's, else the machine's]."
)
@click.option("--engine", default="", metavar="NAME", help="Engine and version the points were taken with.")
@click.option(
    "--context",
    type=click.IntRange(0, 10_000_000),
    default=4096,
    show_default=True,
    help="Context of points that do not say theirs.",
)
@click.option("--name", default="", metavar="NAME", help="Name of the profile.")
@click.option("--allow-mixed", is_flag=True, help="Accept points of several engines, or a run of another machine.")
@click.option(
    "-o", "--output", required=True, type=click.Path(), metavar="FILE", help="Profile to write (- for stdout)."
)
@_options.common
def command(
    points: str | None,
    given: tuple[str, ...],
    output: str,
    as_json: bool,
    quiet: bool,
    debug: bool,  # noqa: ARG001 - read by the error handler
    verbose: bool,
    **options: Any,
) -> None:
    """Fit measured decode, verify, draft and cycle times into a profile that predictions use.

    \b
    nccltune calibrate --model kimi-k2.5 --run run --points points.csv -o profile.json
    nccltune calibrate --model qwen3-30b-a3b --topology h200-x2 --point decode:1:4.57 --point decode:16:9.09 -o p.json
    nccltune predict --draft-tokens 1-8 --run run --profile profile.json
    """
    from nccltune import api

    if points and given:
        raise click.UsageError("--points and --point exclude each other: put the point into the file")
    to_stdout = output == "-"
    profile = api.calibrate(points=points or given, output=None if to_stdout else output, **options)
    if as_json or to_stdout:
        _console.print_json({"schema": "nccltune.profile", **profile.model_dump(mode="json")})
    else:
        _show(profile, output, verbose)
    _console.warn(_console.stderr(quiet), profile.warnings)


def _show(profile: Any, output: str, verbose: bool) -> None:
    out = _console.stdout()
    rows = [
        [p.point.label, f"{p.point.time_ms:.2f}", f"{p.fitted_ms:.2f}", f"{100 * (p.fitted_ms / p.point.time_ms - 1):+.1f}%"]
        for p in profile.points
    ]  # fmt: skip
    out.print(
        _console.table(
            f"{profile.title}, {profile.num_ranks} ranks, {profile.engine}",
            [("point", "left"), ("measured ms", "right"), ("model ms", "right"), ("error", "right")],
            rows,
        )
    )
    moved = [p for p in profile.parameters if verbose or p.spread < 0.8 * p.prior_spread]
    out.print()
    cells = [
        [p.name, f"{p.value:.3g}", p.unit, f"{p.spread:.2f}", f"{p.prior_value:.3g}", f"{p.prior_spread:.2f}"]
        for p in moved
    ]
    out.print(
        _console.table(
            "parameters that the points tell" if not verbose else "parameters",
            [
                ("parameter", "left"),
                ("value", "right"),
                ("unit", "left"),
                ("spread", "right"),
                ("before", "right"),
                ("spread", "right"),
            ],
            cells,
        )
    )
    out.print(f"profile written: {output}", markup=False, highlight=False, soft_wrap=True)
