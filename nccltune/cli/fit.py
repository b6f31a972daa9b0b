"""``nccltune fit``: from a run to its cost model."""

from pathlib import Path
from typing import Any

import click

from nccltune.cli import _beside, _console, _options


@click.command("fit")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--model", default=None, help="Model whose forward ranks the settings [default: that of the scan].")
@click.option(
    "--timing",
    type=click.Choice(["in-forward", "back-to-back", "eager"]),
    default=None,
    help="Times that predictions use [default: in-forward where the run has them].",
)
@click.option(
    "--csv", type=click.Path(path_type=Path), metavar="FILE", help="Also write every case as CSV, one row each."
)
@_options.common
def command(run: Path, model: str | None, timing: str | None, csv: Path | None, **options: Any) -> None:
    """Fit the cost model of RUN (scan does it too), print its settings ranked, and write fit.json into the folder.

    \b
    nccltune fit run
    nccltune fit run --model qwen3-235b-a22b --timing back-to-back --json
    nccltune fit run --csv cases.csv
    """
    from nccltune import api
    from nccltune.cli._tables import fit_summary, fit_table
    from nccltune.schemas.fit import SCHEMA

    fit = api.fit(run, model=model, timing=timing)
    err = _console.stderr(quiet=options["quiet"])
    if csv is not None:
        err.print(f"wrote {csv}: {api.write_csv(run, csv)} cases", markup=False, soft_wrap=True)
    if options["as_json"]:
        _console.print_json({"schema": SCHEMA, **fit.model_dump(mode="json")})
    else:
        out = _console.stdout()
        out.print(fit_table(fit, num_rows=None if options["verbose"] else 20))
        for line in (*fit_summary(fit), *_beside.summary(fit)):
            out.print(line, markup=False, highlight=False, soft_wrap=True)
    _console.warn(err, fit.warnings)
