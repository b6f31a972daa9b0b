"""``nccltune scan``: measure all-reduce per setting and size."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nccltune.cli import _console, _grid, _options
from nccltune.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_QUALITY, EXIT_TIME_LIMIT, InputError
from nccltune.units import parse_duration, parse_ints, parse_sizes

if TYPE_CHECKING:
    from nccltune.bench.report import ScanResult

# Which part of the plan a flag speaks of; beside --resume it must say the same as the run.
_ASPECTS = {
    "backend": "backend", "ranks": "num_ranks", "model": "model", "tokens": "size_bytes", "sizes": "size_bytes", "dtype": "dtype",
    "base": "base", "base_set": "base_env", "timing": "timings", "proto": "settings", "algo": "settings", "channels": "settings",
    "buffsize": "settings", "nthreads": "settings", "p2p_level": "settings", "extra": "settings", "settings": "settings",
}  # fmt: skip
TIMINGS = ("in-forward", "back-to-back", "eager")


@click.command("scan")
@click.option(
    "--backend",
    type=click.Choice(["auto", "nccl", "nccl-tests", "torch", "gloo"]),
    default="auto",
    show_default=True,
    help="auto: nccl with two or more GPUs, otherwise gloo between CPU processes. torch: torch.distributed, over NCCL, or gloo without a GPU.",
)
@click.option("--ranks", type=click.IntRange(min=1), help="Number of ranks [default: all GPUs; 2 for gloo].")
@click.option(
    "--model", default="kimi-k2.5", show_default=True, help="Model whose message sizes and weights shape the scan."
)
@click.option(
    "--tokens",
    default=None,
    help="Tokens of a forward, for example 1-16,32,64 [default: 1-8,16,32,64 without --sizes].",
)
@click.option("--sizes", default=None, help="Message sizes in bytes, for example 14336,64K,8M (added to --tokens).")
@click.option("--proto", default=None, help="Protocols: LL,LL128,Simple.")
@click.option("--algo", default=None, help="Algorithms: Ring,Tree,NVLS.")
@click.option("--channels", default=None, help="Channel counts (MIN = MAX), for example default,4,8,16.")
@click.option("--buffsize", default=None, help="NCCL_BUFFSIZE values, for example 1M,4M,16M.")
@click.option("--nthreads", default=None, help="NCCL_NTHREADS values, for example 64,256,512.")
@click.option("--p2p-level", default=None, help="NCCL_P2P_LEVEL values, for example PHB,SYS.")
@click.option("--set", "extra", multiple=True, metavar="NCCL_X=a,b", help="One more axis; may be repeated.")
@click.option(
    "--setting",
    "settings",
    multiple=True,
    metavar="NAME",
    help="One more setting: seed, env (this shell's NCCL_*), or NCCL_X=..;NCCL_Y=..",
)
@click.option(
    "--base",
    type=click.Choice(["sglang", "nccl"]),
    default="sglang",
    show_default=True,
    help="Environment under every setting.",
)
@click.option(
    "--base-set", multiple=True, metavar="NCCL_X=v", help="One more variable under every setting, the base included."
)
@click.option(
    "--timing",
    default=None,
    help="in-forward, back-to-back, eager (comma-separated) or all [default: in-forward; back-to-back for gloo and nccl-tests].",
)
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float16", "float32"]),
    default="bfloat16",
    show_default=True,
    help="Type of the elements that are summed.",
)
@click.option("--libnccl", default=None, help="libnccl to measure [default: the one torch loads].")
@click.option("--nccl-tests", default=None, help="all_reduce_perf or its folder [default: $NCCL_TESTS, PATH].")
@click.option(
    "--no-dedup", is_flag=True, help="Measure settings that resolve to the same choice again (a noise check)."
)
@click.option(
    "--max-replays", type=click.IntRange(20, 100_000), default=100, show_default=True, help="Most graph replays a case."
)
@click.option(
    "--noise",
    type=_options.FiniteRange(0.01, 50),
    default=1.0,
    show_default=True,
    help="Stop a case when its 90% interval is within this many percent.",
)
@click.option("--time-budget", default=None, help="Stop after so long, for example 10m; what is done is kept.")
@click.option(
    "--case-timeout",
    type=_options.FiniteRange(1, 3600),
    default=60.0,
    show_default=True,
    help="Seconds before a silent rank counts as hung.",
)
@click.option(
    "--search",
    type=click.Choice(["full", "race"]),
    default="full",
    show_default=True,
    help="race: open settings only while they can still win (docs/search.md).",
)
@click.option(
    "--beside/--no-beside",
    default=None,
    help="Measure what an engine could use instead of NCCL too (docs/beside.md) [default: with the back end nccl].",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the order.")
@click.option(
    "--confirm/--no-confirm",
    default=True,
    show_default=True,
    help="Measure exactly what is emitted against the base in fresh launches (back end nccl).",
)
@click.option("--force", is_flag=True, help="Measure although the GPUs are in use.")
@click.option("--dry-run", is_flag=True, help="Print the plan and its cost; measure nothing.")
@click.option("--resume", type=click.Path(path_type=Path), default=None, help="Go on with this run.")
@click.option("--retry-failed", is_flag=True, help="With --resume: measure failed cases again.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), default=None, help="Run folder [default: runs/<time>]."
)
@_options.common
def command(**options: Any) -> int:
    """Measure all-reduce per NCCL setting and size; write a run, its fit and an env file.

    \b
    nccltune scan --model kimi-k2.5 --tokens 1-16 -o run
    nccltune scan --proto LL,Simple --algo Ring --channels default,8,16 --sizes 14336,64K,8M
    nccltune scan --setting seed --timing all --dry-run
    """
    from nccltune import api
    from nccltune.cli._progress import ScanProgress
    from nccltune.cli._scan_output import dry_run, finished

    err = _console.stderr(quiet=options["quiet"])
    if options["retry_failed"] and not options["resume"]:
        raise click.UsageError("--retry-failed goes with --resume RUN.")
    request = _request(options)
    if options["resume"] and (aspects := _aspects(click.get_current_context())):
        from nccltune.bench.report import check_same_plan

        check_same_plan(options["resume"], request, aspects)
    if options["dry_run"]:
        if options["resume"]:
            raise InputError("--dry-run and --resume do not go together", "", "leave one of them out")
        dry_run(api.plan_scan(request), options["as_json"], err)
        return EXIT_OK
    with ScanProgress(err) as progress:
        result = api.scan(
            request,
            output=options["output"],
            resume=options["resume"],
            confirm=options["confirm"],
            on_event=progress.draw,
        )
    finished(result, options["as_json"], err)
    return _exit_code(result)


def _aspects(context: click.Context) -> set[str]:
    """What the command line says about the plan."""
    source = click.core.ParameterSource.COMMANDLINE
    return {aspect for name, aspect in _ASPECTS.items() if context.get_parameter_source(name) == source}


def _request(options: dict[str, Any]) -> Any:
    from nccltune.bench.request import ScanRequest
    from nccltune.bench.sampling import StopRule
    from nccltune.registry import load_model

    tokens = options["tokens"] or (None if options["sizes"] else "1-8,16,32,64")
    return ScanRequest(
        backend=options["backend"], num_ranks=options["ranks"], model=load_model(options["model"]),
        tokens=parse_ints(tokens, what="token count") if tokens else [], size_bytes=parse_sizes(options["sizes"]) if options["sizes"] else [],
        grid=_grid.make_grid(options), timings=_timings(options["timing"]), base=options["base"], base_extra=_grid.base_extra(options["base_set"]),
        dtype=options["dtype"], seed=options["seed"], search=options["search"], libnccl=options["libnccl"], nccl_tests=options["nccl_tests"],
        rule=StopRule(max_replays=options["max_replays"], relative_width=options["noise"] / 100), dedup=not options["no_dedup"],
        time_budget_s=parse_duration(options["time_budget"]) if options["time_budget"] else None, case_timeout_s=options["case_timeout"],
        force=options["force"], retry_failed=options["retry_failed"], beside=options["beside"],
    )  # fmt: skip


def _timings(text: str | None) -> list[Any]:
    if not text:
        return []
    names = list(TIMINGS) if text == "all" else [part.strip() for part in text.split(",")]
    unknown = [name for name in names if name not in TIMINGS]
    if unknown:
        raise InputError(f"no timing is called '{unknown[0]}'", f"known: {', '.join(TIMINGS)}, all", "correct --timing")
    return list(dict.fromkeys(names))


def _exit_code(result: "ScanResult") -> int:
    if result.outcome == "interrupted":
        return EXIT_INTERRUPTED
    if result.outcome == "time_limit":
        return EXIT_TIME_LIMIT
    return EXIT_QUALITY if result.quality_problem else EXIT_OK
