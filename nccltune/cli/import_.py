"""``nccltune import``: other people's text into our records."""

from pathlib import Path
from typing import Any

import click

from nccltune.cli import _console, _options
from nccltune.errors import QualityError
from nccltune.outputs import check_output
from nccltune.parse.importer import KINDS, SCHEMA, SCHEMA_VERSION, Imported, import_file
from nccltune.schemas.common import header
from nccltune.store import write_json


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--kind", type=click.Choice(["auto", *KINDS]), default="auto", show_default=True, help="What the file is."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the record to this JSON file.")
@_options.common
def command(file: Path, kind: str, output: Path | None, as_json: bool, quiet: bool, **_common: bool) -> None:
    """Read an nccl-tests report, an NCCL debug log, a topology matrix or an engine's log into a record.

    \b
    nccltune import all_reduce.txt
    nccltune import nccl-debug.log --kind nccl-log --json
    nvidia-smi topo -m > topo.txt && nccltune import topo.txt -o topo.json

    Exit code 3: the file was read, but nothing in it may be used (wrong results, a failure, one rank only).
    """
    if output is not None:
        check_output(output, [file])
    imported = import_file(file, kind)
    if output is not None:
        write_json(output, {**header(SCHEMA, SCHEMA_VERSION), "file": file.name, **imported.document})
    if as_json:
        _console.print_json(imported.document)
    else:
        _show(imported)
    if not quiet:
        _console.warn(_console.stderr(), _warnings(imported.document))
    if not imported.usable:
        raise QualityError(f"nothing in {file} may be used", imported.why_not, "see the warnings and the errors above")


def _warnings(document: dict[str, Any]) -> list[str]:
    runs = document.get("runs", [])
    prefix = [f"run {number}: " if len(runs) > 1 else "" for number in range(1, len(runs) + 1)]
    of_runs = [f"{p}{text}" for p, run in zip(prefix, runs, strict=True) for text in run["warnings"]]
    return [*of_runs, *document.get("warnings", [])]


def _show(imported: Imported) -> None:
    tables = {"nccl-tests": _show_runs, "nccl-log": _show_log, "topo": _show_topo, "engine-log": _show_engine}
    tables[imported.kind](imported.document)


def _show_runs(document: dict[str, Any]) -> None:
    columns = [("bytes", "right"), ("type", "left"), ("out of place us", "right"), ("in place us", "right"),
               ("wrong", "right"), ("usable", "left")]  # fmt: skip
    for number, run in enumerate(document["runs"], 1):
        title = f"run {number}: {run['collective'] or 'collective unknown'}, {run['num_ranks'] or '?'} ranks, {run['status']}"
        if run["error"]:
            title += f" ({run['error']['kind']}: {run['error']['message']})"
        rows = [
            [str(row["size_bytes"]), row["dtype"], _time(row["out_of_place"]), _time(row["in_place"]), _wrong(row),
             "yes" if row["usable"] else "no"]
            for row in run["rows"]
        ]  # fmt: skip
        _console.stdout().print(title, markup=False, soft_wrap=True)
        if rows:
            _console.stdout().print(_console.table("", columns, rows))
        _show_settings(run)


def _show_log(document: dict[str, Any]) -> None:
    facts = [("NCCL", document["nccl_version"]), ("ranks", document["num_ranks"]), ("channels", document["channels"])]
    facts += [(name, number) for name, number in document["transports"].items() if number]
    _facts(facts)
    _show_settings(document)
    rows = [
        [str(c["size_bytes"]), c["collective"] or "?", c["algo"] or c.get("symmetric_kernel") or "?", c["proto"] or "",
         str(c["channels"] or "")]
        for c in document["choices"]
    ]  # fmt: skip
    columns = [
        ("bytes", "right"),
        ("collective", "left"),
        ("algorithm", "left"),
        ("protocol", "left"),
        ("channels", "right"),
    ]
    if rows:
        _console.stdout().print(_console.table("choices", columns, rows))
    table = (document["model_table"] or {}).get("AllReduce", {})
    rows = [
        [algo, proto, f"{cell['latency_us']:g}", f"{cell['bandwidth_gb_s']:g}"]
        for algo, protos in table.items()
        for proto, cell in protos.items()
        if cell["bandwidth_gb_s"] > 0
    ]
    columns = [("algorithm", "left"), ("protocol", "left"), ("latency us", "right"), ("GB/s", "right")]
    if rows:
        _console.stdout().print(_console.table("NCCL's model of AllReduce", columns, rows))


def _show_topo(document: dict[str, Any]) -> None:
    worst = document["worst_gpu_link"]
    _facts([("GPUs", len(document["gpus"])), ("NICs", len(document["nics"])), ("worst GPU link", worst)])
    columns = [("", "left"), *[(gpu, "left") for gpu in document["gpus"]], ("NUMA", "right")]
    rows = [
        [gpu, *[document["links"].get(gpu, {}).get(other, "X" if other == gpu else "?") for other in document["gpus"]],
         str(document["numa"].get(gpu, ""))]
        for gpu in document["gpus"]
    ]  # fmt: skip
    _console.stdout().print(_console.table("", columns, rows))


def _show_engine(document: dict[str, Any]) -> None:
    length, rate, decode = document["accept_length"], document["accept_rate"], document["decode_tokens_per_s"]
    _facts(
        [
            ("engine", document["engine"]),
            ("accept length", f"{length['mean']:.3f} (mean of {len(length['values'])})" if length else None),
            ("accept rate", f"{rate['mean']:.3f} as {rate['definition']}" if rate else None),
            ("decode tokens/s", decode["median"] if decode else None),
            ("left out", len(decode["excluded"]) if decode and decode["excluded"] else None),
            ("output tokens/s", document["output_throughput_tok_s"]),
            ("CUDA graph", document["cuda_graph"]),
            ("records", len(document["records"])),
            ("error", document["error"]["message"] if document["error"] else None),
        ]
    )


def _show_settings(document: dict[str, Any]) -> None:
    settings = [f"{name}={value}" for name, value in document["settings_in_force"].items()]
    refused = [f"{name}={r['requested']} ({r['message']})" for name, r in document["settings_rejected"].items()]
    _facts([("settings", "; ".join(settings) or None), ("not in force", "; ".join(refused) or None)])


def _facts(facts: list[tuple[str, object]]) -> None:
    for name, value in facts:
        if value is not None:
            _console.stdout().print(f"{name}: {value}", markup=False, soft_wrap=True)


def _time(timing: dict[str, Any] | None) -> str:
    if not timing:
        return ""
    return f"{timing['time_us']:g}" if timing["time_us"] is not None else "no number"


def _wrong(row: dict[str, Any]) -> str:
    counts = [half["num_wrong"] for half in (row["out_of_place"], row["in_place"]) if half]
    known = [count for count in counts if count is not None]
    return str(sum(known)) if known else "not checked"
