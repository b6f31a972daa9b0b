"""``nccltune models``: list, show and add model architectures and draft heads."""

import json
from pathlib import Path
from typing import Any

import click

from nccltune.cli import _console, _options


@click.group()
def command() -> None:
    """List, show and add model architectures and their EAGLE-3 draft heads.

    \b
    nccltune models list
    nccltune models show kimi-k2.5 --ranks 8
    nccltune models add config.json --name my-model
    """


@command.command("list")
@_options.common
def list_command(as_json: bool, quiet: bool, verbose: bool, **_common: bool) -> None:
    """List the known models and draft heads, your own files included.

    \b
    nccltune models list
    nccltune models list --json | jq -r '.models[].name'
    """
    from nccltune import catalog

    document = catalog.list_models()
    if as_json:
        _console.print_json(document)
    else:
        out = _console.stdout()
        out.print(_models_table(document["models"]))
        out.print()
        out.print(_drafters_table(document["drafters"]))
        if verbose:
            _print_lines(out, [f"{row['name']}: {row['file']}" for row in document["models"] + document["drafters"]])
    _console.warn(_console.stderr(quiet), document["warnings"])


@command.command()
@click.argument("name")
@click.option("--ranks", type=click.IntRange(min=1), default=8, show_default=True, help="Tensor-parallel ranks.")
@click.option("--tokens", default="1,4,16", show_default=True, help="Tokens per forward, as 1-8,16.")
@_options.common
def show(name: str, ranks: int, tokens: str, as_json: bool, **_common: bool) -> None:
    """Show one model or draft head: shape, sources, totals beside the published ones, bytes per rank.

    \b
    nccltune models show kimi-k2.5
    nccltune models show openai/gpt-oss-120b --ranks 4 --tokens 1-8
    """
    from nccltune import catalog
    from nccltune.units import parse_ints

    document = catalog.show(name, num_ranks=ranks, num_tokens=parse_ints(tokens, what="number of tokens"))
    if as_json:
        _console.print_json(document)
        return
    out = _console.stdout()
    _print_lines(out, _head_lines(document))
    out.print()
    if "forwards" in document:
        out.print(_forwards_table(document))
    else:
        out.print(f"One of {document['num_ranks']} ranks reads per drafter forward (fc only in draft-extend):")
        out.print(_parts_table(document["weight_bytes_by_part"], "GB"))
    out.print()
    out.print(_parts_table(document["params_by_part"], "billion parameters"))
    _print_lines(out, ["", *(f"source: {s}" for s in document["record"]["source"])])
    _print_lines(out, [f"note:   {n}" for n in document["record"]["notes"]])


@command.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--name", required=True, help="Name of the new file, as other commands will call it.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write this file [default: your own folder].")
@click.option("--user", is_flag=True, help="Write into your own folder (the default).")
@click.option("--drafter", is_flag=True, help="The config.json is that of an EAGLE-3 draft head.")
@click.option("--target", help="With --drafter: the model it drafts for.")
@click.option("--source", help="Where the config.json came from [default: its path].")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@_options.common
def add(
    config: Path,
    name: str,
    output: Path | None,
    user: bool,
    drafter: bool,
    target: str | None,
    source: str | None,
    force: bool,
    as_json: bool,
    quiet: bool,
    **_common: bool,
) -> None:
    """Read a Hugging Face config.json and add it as a model file (or, with --drafter, as a draft head).

    \b
    nccltune models add config.json --name my-model
    nccltune models add eagle/config.json --name my-head --drafter --target kimi-k2.5
    """
    from nccltune import catalog
    from nccltune.registry import names

    if drafter != (target is not None):
        raise click.UsageError("--drafter and --target go together: a draft head belongs to a model.")
    if user and output is not None:
        raise click.UsageError("Give either --user or -o, not both.")
    kind = "drafter" if drafter else "model"
    before = names(kind).get(name)
    path, record = catalog.add(config, name=name, target=target, source=source or "", output=output, force=force)
    if as_json:
        _console.print_json({"kind": kind, "name": name, "file": str(path), "record": record.model_dump(mode="json")})
    else:
        _print_lines(_console.stdout(), [f"wrote {path}"])
    hidden = [f"the {kind} '{name}' of {before} is hidden by it: files that belong to that one may not fit"] if before and names(kind).get(name) != before else []  # fmt: skip
    _console.warn(_console.stderr(quiet), [*hidden, *record.notes])


def _models_table(rows: list[dict[str, Any]]) -> Any:
    columns = [
        ("model", "left"), ("layers", "right"), ("hidden", "right"), ("experts", "right"), ("params", "right"),
        ("active", "right"), ("all-reduces", "right"), ("B/token", "right"), ("weights", "left"), ("drafter", "left"),
    ]  # fmt: skip
    cells = [
        [
            row["name"],
            str(row["num_layers"]),
            str(row["hidden_size"]),
            f"{row['num_experts']}/{row['top_k']}" if row["num_experts"] else "dense",
            _billions(row["total_params"]),
            _billions(row["active_params"]),
            str(row["allreduces_per_forward"]),
            str(row["allreduce_bytes_per_token"]),
            row["weight_format"],
            row["default_drafter"] or "-",
        ]
        for row in rows
    ]
    return _console.table("Models (all-reduces per forward, bytes of one per token)", columns, cells)


def _drafters_table(rows: list[dict[str, Any]]) -> Any:
    columns = [("draft head", "left"), ("target", "left"), ("hidden", "right"), ("vocabulary", "right"), ("params", "right")]  # fmt: skip
    cells = [
        [row["name"], row["target"], str(row["hidden_size"]), str(row["draft_vocab_size"]), _billions(row["total_params"])]
        for row in rows
    ]  # fmt: skip
    return _console.table("Draft heads", columns, cells)


def _head_lines(document: dict[str, Any]) -> list[str]:
    record = document["record"]
    lines = [f"{document['title']} ({document['name']})"]
    if record["aliases"]:
        lines.append(f"also called: {', '.join(record['aliases'])}")
    if "forwards" not in document:
        return [*lines, f"drafts for: {document['target']}"]
    lines.append(
        f"{document['num_layers']} layers, hidden {document['hidden_size']}: {document['allreduces_per_forward']} all-reduces"
        f" per forward of {document['allreduce_bytes_per_token']} B per token"
    )
    lines.append(f"formats: {json.dumps(record['quantization'])}")
    lines.append(
        f"one of {document['num_ranks']} ranks holds {document['resident_bytes_per_rank'] / 1e9:.1f} GB of weights"
    )
    for tokens, size in document["kv_bytes_per_rank_and_request"].items():
        lines.append(f"KV read per rank, request and forward at {tokens} tokens: {size / 1e6:.1f} MB")
    for row in document["published"]:
        lines.append(
            f"{row['what']} parameters: {_billions(row['computed'])} computed, {_billions(row['published'])} published"
            f" ({row['difference_percent']:+.1f}%, tolerance {row['tolerance_percent']:.1f}%; {record['published']['source']})"
        )
    return lines


def _forwards_table(document: dict[str, Any]) -> Any:
    parts = list(document["forwards"][0]["weight_bytes_by_part"])
    columns = [("tokens", "right"), ("all-reduce B", "right"), ("experts", "right")]
    columns += [(part, "right") for part in (*parts, "total")]
    cells = [
        [
            str(row["num_tokens"]),
            str(row["allreduce_bytes"]),
            f"{row['distinct_experts']:.1f}",
            *(f"{row['weight_bytes_by_part'][part] / 1e9:.2f}" for part in parts),
            f"{row['weight_bytes'] / 1e9:.2f}",
        ]
        for row in document["forwards"]
    ]
    return _console.table(f"Weights one of {document['num_ranks']} ranks reads in one forward, GB", columns, cells)


def _parts_table(parts: dict[str, float], unit: str) -> Any:
    cells = [[part, f"{size / 1e9:.3f}"] for part, size in parts.items() if size]
    return _console.table("", [("part", "left"), (unit, "right")], cells)


def _billions(count: float) -> str:
    return f"{count / 1e9:.1f}B" if count >= 1e10 else f"{count / 1e9:.2f}B"


def _print_lines(console: Any, lines: list[str]) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
