"""``nccltune topology``: kinds of machines, as files in ``topology/`` and in the user's folder."""

from pathlib import Path
from typing import Any

import click

from nccltune import registry
from nccltune.cli import _console, _options
from nccltune.errors import InputError
from nccltune.parse.toml_writer import to_toml
from nccltune.probe.detect import detect_topology
from nccltune.schemas.common import header
from nccltune.schemas.topology import AllreduceCurve, Topology
from nccltune.topology_files import add_topology, list_topologies, write_new
from nccltune.units import GIB, format_size, format_us


@click.group("topology")
def command() -> None:
    """List, show, add and detect machines: GPUs, links and published all-reduce curves.

    \b
    nccltune topology list
    nccltune topology show rtx-pro-6000-x8
    nccltune topology detect -o my-machine.toml && nccltune topology add my-machine.toml
    """


@command.command("list")
@_options.common
def list_command(as_json: bool, quiet: bool, **_common: bool) -> None:
    """List the known machines, the user's own first where names are the same.

    \b
    nccltune topology list --json
    """
    listing = list_topologies()
    if not quiet:
        _console.warn(_console.stderr(), listing.warnings)
    if as_json:
        entries = [_summary(entry.topology) | {"origin": entry.origin} for entry in listing.entries]
        _console.print_json(
            {**header("nccltune.topology_list", 1), "topologies": entries, "warnings": listing.warnings}
        )
        return
    columns = [("name", "left"), ("machine", "left"), ("links", "left"), ("GB/s memory", "right"), ("GB/s link", "right"),
               ("curves", "right"), ("from", "left")]  # fmt: skip
    rows = [
        [t.name, t.title, t.links.name, f"{t.gpu.memory_bandwidth_bytes_per_s / 1e9:.0f}",
         f"{t.links.bandwidth_bytes_per_s / 1e9:.0f}", str(len(t.allreduce)), entry.origin]
        for entry in listing.entries
        for t in [entry.topology]
    ]  # fmt: skip
    _console.stdout().print(_console.table("", columns, rows))


@command.command("show")
@click.argument("name")
@_options.common
def show_command(name: str, as_json: bool, **_common: bool) -> None:
    """Show one machine with its sources and curves. NAME is a name, an alias or the path of a .toml file.

    \b
    nccltune topology show h200-x8
    """
    topology = registry.load_topology(name)
    if as_json:
        _console.print_json({**header("nccltune.topology", 1), **topology.model_dump(mode="json")})
        return
    console = _console.stdout()
    for label, text in _facts(topology):
        console.print(f"{label:<18} {text}", markup=False, soft_wrap=True)
    for source in topology.source:
        console.print(f"{'source':<18} {source}", markup=False, soft_wrap=True)
    for num_ranks in sorted({curve.num_ranks for curve in topology.allreduce}):
        console.print()
        _show_curves(num_ranks, [curve for curve in topology.allreduce if curve.num_ranks == num_ranks])


@command.command("add")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace a machine of the same name in the user's folder.")
@_options.common
def add_command(file: Path, force: bool, as_json: bool, quiet: bool, **_common: bool) -> None:
    """Check a machine's file and copy it to the user's folder, where every command finds it by name.

    \b
    nccltune topology add my-machine.toml
    """
    topology, path = add_topology(file, force=force)
    if as_json:
        _console.print_json({**header("nccltune.topology_added", 1), "name": topology.name, "path": str(path)})
    elif not quiet:
        _console.stdout().print(f"added {topology.name}: {path}", markup=False, soft_wrap=True)


@command.command("detect")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write [default: standard output].")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@_options.common
def detect_command(output: Path | None, force: bool, as_json: bool, quiet: bool, **_common: bool) -> None:
    """Write this machine's topology file. Needs an NVIDIA GPU; exits with 5 without one.

    \b
    nccltune topology detect -o my-machine.toml
    """
    if as_json and output is not None and str(output) == "-":
        raise InputError("--json and -o - both want standard output", "", "leave one of them out")
    topology = detect_topology()
    text = to_toml(topology, "Written by 'nccltune topology detect'. Check the figures before relying on them.")
    if output is not None and str(output) != "-":
        write_new(output, text, force=force)
        if not quiet and not as_json:
            _console.stderr().print(f"wrote {output}", markup=False, soft_wrap=True)
    if as_json:
        _console.print_json({**header("nccltune.topology", 1), **topology.model_dump(mode="json")})
    elif output is None or str(output) == "-":
        click.echo(text, nl=False)


def _summary(topology: Topology) -> dict[str, Any]:
    return {
        "name": topology.name,
        "title": topology.title,
        "aliases": topology.aliases,
        "num_gpus": topology.num_gpus,
        "gpu": topology.gpu.name,
        "links": topology.links.kind,
        "memory_bandwidth_bytes_per_s": topology.gpu.memory_bandwidth_bytes_per_s,
        "link_bandwidth_bytes_per_s": topology.links.bandwidth_bytes_per_s,
        "num_curves": len(topology.allreduce),
    }


def _facts(topology: Topology) -> list[tuple[str, str]]:
    gpu, links = topology.gpu, topology.links
    return [
        ("name", f"{topology.name} ({topology.title})"),
        ("aliases", ", ".join(topology.aliases) or "none"),
        ("GPUs", f"{topology.num_gpus}x {gpu.name}, compute capability {gpu.compute_capability}"),
        ("memory of a GPU", f"{gpu.memory_bytes / GIB:.0f} GiB, {gpu.memory_bandwidth_bytes_per_s / 1e9:.0f} GB/s"),
        ("L2 of a GPU", format_size(int(gpu.l2_bytes))),
        ("BF16 of a GPU", f"{gpu.bf16_flop_per_s / 1e12:.0f} TFLOP/s dense"),
        ("links", f"{links.name}, {links.bandwidth_bytes_per_s / 1e9:.0f} GB/s each way"
                  + (f", worst pair {links.worst_gpu_link}" if links.worst_gpu_link else "")),
    ]  # fmt: skip


def _show_curves(num_ranks: int, curves: list[AllreduceCurve]) -> None:
    """Print the curves of one rank count side by side, then what each column is."""
    columns = [("size", "right"), *((f"({i})", "right") for i in range(1, len(curves) + 1))]
    times = [dict(zip(curve.size_bytes, curve.time_us, strict=True)) for curve in curves]
    sizes = sorted({size for by_size in times for size in by_size})
    rows = [
        [format_size(size), *(format_us(by_size[size]) if size in by_size else "" for by_size in times)]
        for size in sizes
    ]
    console = _console.stdout()
    console.print(f"all-reduce over {num_ranks} ranks, us", style="bold")
    console.print(_console.table("", columns, rows))
    for i, curve in enumerate(curves, 1):
        setting = "" if curve.setting.id == "base" else f", {curve.setting.id}"
        said = f"({i}) {curve.library} {curve.version}, {curve.mode}{setting}: {curve.note}; {curve.source}"
        console.print(said, markup=False, soft_wrap=True)
