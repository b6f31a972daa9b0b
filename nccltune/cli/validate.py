"""``nccltune validate``: predictions against a real engine."""

from pathlib import Path
from typing import Any

import click

from nccltune.cli import _console, _live, _options, _trace, _validation
from nccltune.schemas.limits import MAX_BATCH, MAX_DRAFT_TOKENS


@click.group()
def command() -> None:
    """Show how far predictions are from a real engine: from measured points, or from servers that it runs.

    \b
    nccltune validate points points.csv --model kimi-k2.5 --run run
    nccltune validate trace decode.trace.json.gz --model kimi-k2.5
    nccltune validate sglang --model-path Kimi-K2.5 --draft-model-path eagle3 --model kimi-k2.5 --run run --dry-run
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
    type=_options.FiniteRange(min=0, min_open=True),
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
@click.option(
    "--run", type=click.Path(), metavar="DIR", help="Run whose in-forward cost is put beside the traced time."
)
@click.option("--setting", metavar="NAME", help="Setting the engine ran with [default: best].")
@click.option(
    "--batch", type=click.IntRange(1, MAX_BATCH), default=1, show_default=True, help="Requests in the traced forwards."
)
@click.option(
    "--draft-tokens",
    type=click.IntRange(1, MAX_DRAFT_TOKENS),
    default=1,
    show_default=True,
    help="Width of the traced verify.",
)
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

    if options["setting"] and not options["run"]:
        raise click.UsageError("--setting names a curve of the run: give --run")
    found = api.validate_trace(Path(file), **options)
    _trace.show(found, as_json=as_json)
    _console.warn(_console.stderr(quiet), found.warnings)
    gate(found)


@command.command()
@click.option("--model-path", default="", metavar="PATH", help="SGLang's --model-path.")
@click.option("--draft-model-path", metavar="PATH", help="SGLang's --speculative-draft-model-path.")
@click.option(
    "--model", metavar="NAME", help="Model file, alias, path or config.json [default: the config.json of --model-path]."
)
@click.option(
    "--drafter",
    metavar="NAME",
    help="Drafter file or config.json [default: the model's, else that of --draft-model-path].",
)
@click.option(
    "--run", type=click.Path(), metavar="DIR", help="Run folder: settings, their variables, and the predictions."
)
@click.option("--profile", metavar="FILE", help="Profile of 'nccltune calibrate' to predict with.")
@click.option("--topology", metavar="NAME", help="Machine file [default: the run's or profile's].")
@click.option(
    "--settings",
    default=("base,best",),
    show_default="base,best",
    metavar="LIST",
    help="Settings: base, best, names, or 'NCCL_X=a;NCCL_Y=b'; give it again for more.",
    multiple=True,
)
@click.option(
    "--draft-tokens", default="1,3", show_default=True, metavar="LIST", help="Draft-token counts; 1 is plain decode."
)
@click.option("--batch", default="1", show_default=True, metavar="LIST", help="Batch sizes, all on one server.")
@click.option(
    "--context",
    type=click.IntRange(1, 10_000_000),
    default=1024,
    show_default=True,
    help="Mean context of the measured steps.",
)
@click.option(
    "--output-tokens",
    type=click.IntRange(16, 1_000_000),
    default=256,
    show_default=True,
    help="Tokens that every request generates.",
)
@click.option("--repeats", type=click.IntRange(1, 1000), default=3, show_default=True, help="Loads per arm.")
@click.option("--tp", type=click.IntRange(1, 1024), help="Tensor-parallel size [default: the run's].")
@click.option("--port", type=click.IntRange(1, 65535), help="Port of 127.0.0.1 [default: a free one].")
@click.option(
    "--launch",
    default="python3 -m sglang.launch_server",
    show_default=True,
    metavar="CMD",
    help="How a server is started.",
)
@click.option("--extra-args", default="", metavar="ARGS", help="More flags of the server.")
@click.option(
    "--env", multiple=True, metavar="NAME=VALUE", help="More variables of the server (not NCCL_*). Repeatable."
)
@click.option("--load-format", metavar="FORMAT", help="SGLang's --load-format, for model and drafter: dummy.")
@click.option(
    "--disable-custom-all-reduce",
    "nccl_all_reduce",
    is_flag=True,
    help="Switch SGLang's own and FlashInfer's all-reduce off, so that NCCL carries them.",
)
@click.option(
    "--simulate-accept-length",
    type=_options.FiniteRange(min=1),
    metavar="X",
    help="Fix the accept length (bonus included): validates times, not acceptance.",
)
@click.option(
    "--prompts",
    type=click.Path(),
    metavar="FILE",
    help="Prompts, one a line (text or JSON) [default: made English text].",
)
@click.option(
    "--profile-steps",
    type=click.IntRange(0, 1000),
    default=0,
    show_default=True,
    help="Trace this many steps of every arm: all-reduces and verify time.",
)
@click.option(
    "--calibrate",
    multiple=True,
    metavar="ARM",
    help="Calibrate on SETTING:BATCH:DRAFT_TOKENS, at most four; never scored. Repeatable.",
)
@click.option("--attach", metavar="URL", help="Measure a server that runs already; nothing is started or stopped.")
@click.option(
    "--ready-limit",
    default="30m",
    show_default=True,
    metavar="TIME",
    help="Longest wait for the first generated token.",
)
@click.option(
    "--stall-limit",
    default="2m",
    show_default=True,
    metavar="TIME",
    help="Longest wait for the next byte of an answer.",
)
@click.option(
    "--tolerance",
    type=_options.FiniteRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="Largest error of a scored arm; beyond it the exit code is 4.",
)
@click.option(
    "--dry-run", is_flag=True, help="Print the servers, their variables and the time it takes; start nothing."
)
@click.option(
    "--resume",
    type=click.Path(),
    metavar="FOLDER",
    help="Go on with a folder: finished arms are kept, failed ones tried again.",
)
@click.option(
    "-o", "--output", type=click.Path(), metavar="FOLDER", help="Folder of the results [default: validation-DATE]."
)
@_options.common
def sglang(
    dry_run: bool,
    resume: str | None,
    output: str | None,
    as_json: bool,
    quiet: bool,
    debug: bool,  # noqa: ARG001 - read by the error handler
    verbose: bool,
    **options: Any,
) -> None:
    """Run a real SGLang server per setting and draft-token count, measure every arm, and compare with the prediction.

    Plain decode under the base is always measured. Each server has its own process group on 127.0.0.1 and the variables
    that emit writes; it is stopped, and port, processes and GPU memory are checked, before the next one starts. Exit code
    4 when any scored arm is off by more than --tolerance, 3 when no arm was measured or scored.

    \b
    nccltune validate sglang --model-path Kimi-K2.5 --draft-model-path eagle3 --model kimi-k2.5 --run run --settings base,best --draft-tokens 1,2,3 --batch 1,4
    nccltune validate sglang --resume validation-20261129-120000
    nccltune validate sglang --attach http://127.0.0.1:30000 --model kimi-k2.5 --run run --settings best --batch 1,4
    """
    from nccltune import api
    from nccltune.validation.points import gate

    request = None if resume else _live.make_request(options)
    if resume and (given := _live.given_options(options)):
        _console.warn(_console.stderr(quiet), [f"--resume goes on with the stored request: {', '.join(given)} given here does not count"])  # fmt: skip
    if dry_run:
        _live.show_plan(api.plan_validation(request, resume=resume), as_json=as_json)
        return
    err = _console.stderr(quiet)
    found, folder = api.validate_sglang(request, output=output, resume=resume, on_progress=lambda p: _live.draw(err, p))
    _validation.show(found, as_json=as_json, verbose=verbose)
    _console.warn(err, found.warnings)
    err.print(f"results: {folder}", markup=False, soft_wrap=True)
    gate(found)
