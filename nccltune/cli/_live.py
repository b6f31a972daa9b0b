"""Options of ``validate sglang`` as a request, its plan and its progress."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from nccltune.cli import _console
from nccltune.units import format_duration, parse_duration, parse_ints

if TYPE_CHECKING:
    from nccltune.validation.request import LiveRequest
    from nccltune.validation.session import Progress


def make_request(options: dict[str, Any]) -> "LiveRequest":
    """Turn the options into a request; texts become lists, defaults come from the model folders."""
    from nccltune.validation.request import LiveRequest

    model = options.pop("model") or _config_of(options["model_path"])
    if model is None:
        raise click.UsageError("give --model: --model-path names no folder with a config.json")
    known: dict[str, Any] = {"settings": split_settings(options.pop("settings")), "draft_tokens": parse_ints(options.pop("draft_tokens"), what="number of draft tokens"),
             "batch": parse_ints(options.pop("batch"), what="batch size"), "env": _env(options.pop("env")), "calibrate": list(options.pop("calibrate")),
             "ready_limit_s": parse_duration(options.pop("ready_limit")), "stall_s": parse_duration(options.pop("stall_limit"))}  # fmt: skip
    drafter = options.pop("drafter") or (_config_of(options["draft_model_path"]) if Path(str(model)).exists() else None)
    return LiveRequest(**options, **known, model=str(model), drafter=str(drafter) if drafter else None)


def given_options(options: dict[str, Any]) -> list[str]:
    """Return the flags among ``options`` that the command line of this call gives."""
    context = click.get_current_context()
    by_name = {p.name: p.opts[0] for p in context.command.params if p.name in options}
    return [flag for name, flag in by_name.items() if name and context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]  # fmt: skip


def split_settings(texts: tuple[str, ...]) -> list[str]:
    """Split ``base,best,NCCL_PROTO=LL;NCCL_ALGO=ring,tree``: names by commas; from ``NCCL_`` on, one setting a text."""
    found: list[str] = []
    for text in texts:
        head, mark, tail = text.partition("NCCL_")
        found += [name.strip() for name in head.split(",") if name.strip()]
        if mark:
            found.append((mark + tail).strip())
    return list(dict.fromkeys(found))


def show_plan(plan: dict[str, Any], *, as_json: bool) -> None:
    """Print what would run."""
    if as_json:
        _console.print_json({"schema": "nccltune.validation-plan", "schema_version": 1, **plan})
        return
    out = _console.stdout()
    for server in plan["servers"]:
        arms = ", ".join(f"batch {a['batch_size']}{' (done)' if a['done'] else ''}" for a in server["arms"])
        _print(out, f"{server['server_id']}: {arms}")
        _print(out, "  " + " ".join(f"{k}={v!r}" if ";" in v else f"{k}={v}" for k, v in server["env"].items()))
        _print(out, f"  {server['command'] or server['attach']}")
    _print(out, f"{plan['num_servers']} servers to start, {plan['num_arms']} arms ({plan['num_done']} done): about {format_duration(plan['seconds'])} "
                f"({plan['start_s']:.0f} s a start, {plan['start_source']}; steps as predicted)")  # fmt: skip
    if plan["num_arms_without_estimate"]:
        _print(out, f"{plan['num_arms_without_estimate']} arms cannot be predicted and are not in that time")


def draw(console: Console, progress: "Progress") -> None:
    """Print one line of progress."""
    console.print(f"[{progress.num_done}/{progress.num_total}] {progress.text}", markup=False, highlight=False, soft_wrap=True)  # fmt: skip


def _config_of(folder: str | None) -> Path | None:
    path = Path(folder) / "config.json" if folder else None
    return path if path is not None and path.is_file() else None


def _env(texts: tuple[str, ...]) -> dict[str, str]:
    result = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise click.UsageError(f"--env {text} is not NAME=VALUE")
        result[name] = value
    return result


def _print(out: Console, text: str) -> None:
    out.print(text, markup=False, highlight=False, soft_wrap=True)
