"""The comment header of an emitted file, and the same as data: who made it, from what, what it gains and costs."""

import datetime
import shlex
from typing import Any

from nccltune import __version__
from nccltune.algo_lists import seen_by_allreduce
from nccltune.emit import formats, safety, sglang_args
from nccltune.emit.document import MARK, WRITTEN_FOR, Document, Speculation
from nccltune.emit.minimal import MinimalSet
from nccltune.emit.request import Options, Source
from nccltune.emit.selection import Selection
from nccltune.knobs import Version
from nccltune.schemas.common import command_line
from nccltune.schemas.run import Confirmation


def header_lines(
    source: Source,
    options: Options,
    chosen: Selection,
    reduced: MinimalSet | None,
    target: Version | None,
    spec: Speculation | None,
    written: dict[str, str],
) -> list[str]:
    """Return the header, one line each, without comment signs. ``written``: the variables of the setting that the file holds."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    lines = [
        f"{MARK} --format {options.format} (nccltune {__version__}, {now})",
        f"command: {shlex.join(command_line())}",
    ]
    fit, manifest = source.fit, source.manifest
    if fit is not None:
        lines.append(f"machine: {machine_line(source)}")
        version = safety.dotted(source.nccl_measured) if source.nccl_measured else "none"
        backend = f", back end {manifest.backend}" if manifest else ""
        lines.append(
            f"measured: run {fit.run_id} of {fit.created_at[:10]}, NCCL {version}, {fit.num_ranks} ranks{backend}, {fit.timing} timing"
        )
    if target is not None:
        lines.append(f"{WRITTEN_FOR}{safety.dotted(target)}")
    if options.format not in formats.RULE_NAMES:
        lines += _setting_lines(source, chosen, reduced, written, full=options.full)
    if spec is not None or options.engine_flags:
        flags = sglang_args.flags(Document(speculation=spec, engine_flags=options.engine_flags))
        lines.append(f"engine flags: {' '.join(flags)}")
    lines.append(f"use: {formats.get(options.format).USE}")
    lines.append("NCCL reads this when it starts: restart the server after a change")
    return lines


def _setting_lines(
    source: Source, chosen: Selection, reduced: MinimalSet | None, written: dict[str, str], *, full: bool
) -> list[str]:
    setting = chosen.setting
    lines = [f"setting: {setting.name}" + (f" ({setting.id})" if setting.env and setting.id != setting.name else "")]
    if source.fit is None or not setting.env:
        return lines
    lines.append(f"gain at decode: {chosen.decode or 'decode sizes were not measured with it'}")
    lines.append(f"at prefill: {chosen.prefill or 'prefill sizes were not measured'}")
    lines += _confirmed(source, written)
    if chosen.tied:
        lines.append(f"tied with it: {', '.join(chosen.tied)}")
    if reduced is not None and not full:
        lines += [f"left out: {name}={setting.env[name]} ({why})" for name, why in reduced.dropped.items()]
    return lines


def _confirmed(source: Source, written: dict[str, str]) -> list[str]:
    """One line when the scan confirmed this set in launches of its own."""
    found = confirmation_of(source, written)
    if found is None or not found.num_launches:
        return []
    others = found.other_collectives
    tail = "" if others is None else "; all-gather, reduce-scatter and broadcast " + ("FAIL" if any(others.values()) else "give right data")  # fmt: skip
    return [f"confirmed: {found.num_launches} more launches of exactly this set, in turn with the base{tail}"]


def confirmation_of(source: Source, written: dict[str, str]) -> Confirmation | None:
    """The last confirmation of exactly these variables."""
    known = source.manifest.confirmations if source.manifest else []
    return next((c for c in reversed(known) if same_set(c.env, written)), None)


def same_set(a: dict[str, str], b: dict[str, str]) -> bool:
    """Whether two sets are the same for an all-reduce, however their ALGO and PROTO lists are written."""
    return seen_by_allreduce(a) == seen_by_allreduce(b)


def machine_line(source: Source) -> str:
    """Return GPUs and driver; no host name."""
    if source.manifest is None:
        return source.fit.machine if source.fit is not None else ""
    machine = source.manifest.machine
    counts: dict[str, int] = {}
    for gpu in machine.gpus:
        counts[gpu.name] = counts.get(gpu.name, 0) + 1
    gpus = ", ".join(f"{count}x {name}" for name, count in counts.items()) or machine.cpu_model
    return gpus + (f", driver {machine.driver_version}" if machine.driver_version else "")


def facts(source: Source, options: Options, chosen: Selection | None, reduced: MinimalSet | None) -> dict[str, Any]:
    """Return what the header says as JSON data."""
    fit, kept = source.fit, reduced.kept if reduced else {}
    return {
        "nccltune_version": __version__,
        "created_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command_line(),
        "format": options.format,
        "run_id": fit.run_id if fit else None,
        "machine": machine_line(source) if fit else None,
        "nccl_version_measured": safety.dotted(source.nccl_measured) if source.nccl_measured else None,
        "objective": options.objective or "decode",
        "setting": {"name": chosen.setting.name, "env": chosen.setting.env} if chosen else None,
        "gain_at_decode": chosen.decode.to_json() if chosen and chosen.decode else None,
        "gain_at_prefill": chosen.prefill.to_json() if chosen and chosen.prefill else None,
        "tied_with": list(chosen.tied) if chosen else [],
        "kept": {name: {"gain": e.gain.to_json() if e.gain else None, "evidence": e.how} for name, e in kept.items()},
        "left_out": dict(reduced.dropped) if reduced and not options.full else {},
    }
