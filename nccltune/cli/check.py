"""``nccltune check``."""

import click

from nccltune import api
from nccltune.cli import _console, _options
from nccltune.emit import formats
from nccltune.errors import EXIT_OK, EXIT_QUALITY


@click.command()
@click.argument("file")
@click.option(
    "--format",
    "form",
    type=click.Choice(["auto", *formats.NAMES]),
    default="auto",
    show_default=True,
    help="Who will read the file.",
)
@click.option(
    "--nccl-version", metavar="X.Y.Z", help="NCCL that will read the variables; unknown: what holds for all versions."
)
@click.option(
    "--running", "pid", type=click.IntRange(min=1), metavar="PID", help="Compare with the environment of that process."
)
@_options.common
def command(
    file: str,
    form: str,
    nccl_version: str | None,
    pid: int | None,
    as_json: bool,
    quiet: bool,  # noqa: ARG001
    verbose: bool,  # noqa: ARG001
    debug: bool,  # noqa: ARG001
) -> int:
    """Find what an env file's reader would take differently from its writer. Exit 3 when there are problems.

    \b
    nccltune check nccl.env --format docker
    nccltune check nccl.env --nccl-version 2.31.2
    nccltune check nccl.env --running 4711
    """
    report = api.check(file, format=form, nccl_version=nccl_version, pid=pid)
    if as_json:
        _console.print_json(report.to_json())
    else:
        out = _console.stdout()
        for finding in report.findings:
            place = f"{file}:{finding.line}" if finding.line else file
            advice = f" [{finding.advice}]" if finding.advice else ""
            out.print(f"{place}: {finding.level}: {finding.message}{advice}", markup=False, soft_wrap=True)
        num_warnings = len(report.findings) - report.num_problems
        read_as = "NAME=value lines" if report.format == "env" else report.format
        out.print(f"{file} read as {read_as}: {len(report.variables)} variables, {report.num_problems} problems, {num_warnings} warnings",
                  markup=False, soft_wrap=True)  # fmt: skip
    return EXIT_QUALITY if report.num_problems else EXIT_OK
