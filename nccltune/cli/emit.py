"""``nccltune emit``."""

from typing import Any

import click

from nccltune import api
from nccltune.cli import _console, _options
from nccltune.emit import formats


@click.command()
@click.argument("run_argument", metavar="[RUN]", required=False)
@click.option("--run", "run", metavar="RUN", help="Run folder of 'nccltune scan' whose settings are emitted.")
@click.option(
    "--setting",
    default="best",
    show_default=True,
    metavar="NAME",
    help="best, base, a name of the run or 'seed', or NCCL_X=a;NCCL_Y=b.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(formats.NAMES),
    default="shell",
    show_default=True,
    help="Who will read the file.",
)
@click.option("-o", "--output", metavar="FILE", help="Write there instead of stdout (-); with tuner-plugin a folder.")
@click.option("--full", is_flag=True, help="Keep variables whose effect is within noise.")
@click.option(
    "--objective",
    metavar="OBJ",
    help="decode, prefill or both:WEIGHT (share of decode) [default: decode, unless prefill pays too much].",
)
@click.option(
    "--max-prefill-cost",
    type=_options.FiniteRange(min=0),
    default=10.0,
    show_default=True,
    metavar="PERCENT",
    help="Cost at prefill sizes above which nothing is written.",
)
@click.option(
    "--draft-tokens",
    type=int,
    metavar="N",
    help="SGLang's --speculative-num-draft-tokens (root included); adds the speculative flags.",
)
@click.option(
    "--steps", "num_steps", type=int, metavar="N", help="Draft steps [default with top-k 1: draft tokens - 1]."
)
@click.option(
    "--topk", "eagle_topk", type=int, default=1, show_default=True, metavar="K", help="Branches per step; 1 is a chain."
)
@click.option("--draft-model", metavar="PATH", help="Adds --speculative-draft-model-path.")
@click.option(
    "--disable-custom-all-reduce",
    is_flag=True,
    help="Add that SGLang flag, so that NCCL carries decode-size all-reduces.",
)
@click.option(
    "--base",
    type=click.Choice(["sglang", "nccl"]),
    default="sglang",
    show_default=True,
    help="Base environment when there is no run.",
)
@click.option("--model", metavar="NAME", help="Model whose message sizes count as decode [default: the run's].")
@click.option("--nccl-version", metavar="X.Y.Z", help="NCCL that will read the file [default: the measured one].")
@click.option(
    "--force", is_flag=True, help="Write although a safety check refuses, and replace a file that is not ours."
)
@_options.common
def command(
    run_argument: str | None,
    run: str | None,
    form: str,
    output: str | None,
    max_prefill_cost: float,
    as_json: bool,
    quiet: bool,
    verbose: bool,  # noqa: ARG001
    debug: bool,  # noqa: ARG001
    **options: Any,
) -> None:
    """Write the settings worth exporting, in the format their reader needs, each with its measured gain.

    \b
    nccltune emit --run run -o nccl.env                             what the launch script sources
    nccltune emit --run run --format k8s --objective both:0.7       balance decode and prefill
    nccltune emit --run run --format sglang-args --draft-tokens 4   flags for sglang.launch_server
    nccltune emit --run run --format tuner-plugin -o tuner          a choice per message size, built here
    nccltune emit --setting seed --format docker                    a shipped setting, not measured here
    """
    if run and run_argument and run != run_argument:
        raise click.UsageError("two runs were given: RUN and --run; give one")
    emitted = api.emit(
        run or run_argument, format=form, output=output, max_prefill_cost_percent=max_prefill_cost, **options
    )
    _console.warn(_console.stderr(quiet), list(emitted.document.warnings))
    if as_json:
        _console.print_json(emitted.to_json())
    elif emitted.path is None:
        click.echo(emitted.text, nl=False)
    else:
        _console.stderr(quiet).print(
            f"wrote {output} ({form}, {len(emitted.document.variables)} variables)", markup=False, soft_wrap=True
        )
