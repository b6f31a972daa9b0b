"""``nccltune predict``: verify time, cycle, tokens/s and the best draft-token count, with intervals and sources."""

from typing import Any

import click

from nccltune.cli import _console, _options, _prediction


@click.command()
@click.option(
    "--draft-tokens",
    required=True,
    metavar="LIST",
    help="Draft-token counts, root included: 3, 1-8 or 2,4,6. 1 is plain decode and always shown.",
)
@click.option("--batch", default="1", show_default=True, metavar="LIST", help="Concurrent requests: 1,4,16.")
@click.option(
    "--model", metavar="NAME", help="Model file, alias or path [default: the run's or profile's, else kimi-k2.5]."
)
@click.option(
    "--run", type=click.Path(), metavar="DIR", help="Run folder of 'nccltune scan': communication as measured there."
)
@click.option("--profile", metavar="FILE", help="Profile of 'nccltune calibrate', or the name of a shipped one.")
@click.option(
    "--setting", metavar="NAME", help="base, best, a name, or 'NCCL_PROTO=LL;NCCL_ALGO=Ring' [default: best]."
)
@click.option("--topology", metavar="NAME", help="Machine file [default: the run's or profile's].")
@click.option(
    "--ranks", type=click.IntRange(1, 1024), help="Tensor-parallel ranks (what-if: another number than measured)."
)
@click.option("--drafter", metavar="NAME", help="Drafter file [default: the model's].")
@click.option("--quant", metavar="FORMAT", help="What-if: weights stored as bf16, fp8, int4, nvfp4 ...")
@click.option(
    "--context",
    type=click.IntRange(0, 10_000_000),
    help="Tokens of context per request [default: the profile's, else 4096].",
)
@click.option(
    "--accept-length",
    type=_options.FiniteRange(),
    help="Mean accept length, bonus token included (0.93 accepted drafts = 1.93).",
)
@click.option(
    "--accept-steps",
    type=click.IntRange(1, 1024),
    help="Drafts per verify that --accept-length or --accept-log was measured over.",
)
@click.option("--accept-rates", metavar="LIST", help="Acceptance by position: 0.6,0.4,0.25.")
@click.option(
    "--accept-kind",
    type=click.Choice(["auto", "survival", "conditional"]),
    default="auto",
    show_default=True,
    help="What --accept-rates are.",
)
@click.option(
    "--accept-log",
    type=click.Path(),
    metavar="FILE",
    help="Server log, metrics or benchmark output with accept lengths.",
)
@click.option(
    "--topk",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Candidates per draft step; above 1 a tree.",
)
@click.option("--num-steps", type=click.IntRange(1, 64), help="Draft steps of a tree (a chain has draft tokens - 1).")
@click.option(
    "--adaptive-config",
    type=click.Path(),
    metavar="FILE",
    help="Write the ladder per batch size for SGLang's --speculative-adaptive-config.",
)
@click.option("--explain", is_flag=True, help="Every term of one row with its parameter and source.")
@_options.common
def command(
    draft_tokens: str,
    batch: str,
    accept_rates: str | None,
    adaptive_config: str | None,
    as_json: bool,
    quiet: bool,
    debug: bool,  # noqa: ARG001 - read by the error handler
    verbose: bool,  # noqa: ARG001 - the table is already whole
    **options: Any,
) -> None:
    """Predict verify time, cycle, tokens/s and the best number of draft tokens.

    Without a run of this machine the answer comes from a shipped reference, and says so. Without a known acceptance
    everything but tokens/s is given, with the accept length at which speculation breaks even.

    \b
    nccltune predict --draft-tokens 3
    nccltune predict --draft-tokens 1-8 --run run --accept-rates 0.62,0.41,0.27
    nccltune predict --draft-tokens 1-8 --batch 1,4,16 --accept-log server.log --json
    nccltune predict --draft-tokens 4 --setting base --explain
    nccltune predict --draft-tokens 1-6 --batch 1,8,32 --adaptive-config adaptive.json
    """
    from nccltune import api
    from nccltune.costmodel.acceptance_input import parse_rates, parse_tree_rates
    from nccltune.units import parse_ints

    by_rank = accept_rates is not None and "/" in accept_rates
    found = api.predict(
        parse_ints(draft_tokens, what="number of draft tokens"),
        batch=parse_ints(batch, what="batch size"),
        accept_rates=parse_rates(accept_rates) if accept_rates is not None and not by_rank else None,
        tree_rates=parse_tree_rates(accept_rates) if accept_rates is not None and by_rank else None,
        **options,
    )
    if adaptive_config is not None:
        api.write_adaptive_config(found, adaptive_config)
    if as_json:
        _console.print_json({"schema": "nccltune.prediction", **found.model_dump(mode="json")})
    else:
        _prediction.show(_console.stdout(), found)
    _console.warn(_console.stderr(quiet), found.warnings)
