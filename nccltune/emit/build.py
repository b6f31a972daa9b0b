"""From a run (or a shipped setting) to the document that the formats render: choose, reduce, rewrite, check, explain."""

import datetime
import shlex
from dataclasses import dataclass, field
from typing import Any

from nccltune import __version__
from nccltune.emit import grammar, safety, sglang_args
from nccltune.emit.document import MARK, Document, Variable
from nccltune.emit.gain import decode_limit
from nccltune.emit.minimal import MinimalSet, minimal_set
from nccltune.emit.safety import EnginePath, Note
from nccltune.emit.selection import Selection, decode_sizes, named_only, parse_objective, select
from nccltune.errors import InputError, QualityError
from nccltune.knobs import BASES, Version
from nccltune.schemas.common import command_line
from nccltune.schemas.fit import Fit
from nccltune.schemas.measurement import Measurement
from nccltune.schemas.run import Manifest

MAX_PREFILL_COST_PERCENT = 10.0
"""Share of prefill communication that a gain at decode may cost before the user has to say so."""


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    format: str = "shell"
    setting: str = "best"
    full: bool = False
    objective: str | None = None
    max_prefill_cost_percent: float = MAX_PREFILL_COST_PERCENT
    draft_tokens: int | None = None
    num_steps: int | None = None
    eagle_topk: int = 1
    draft_model: str | None = None
    disable_custom_all_reduce: bool = False
    base: str = "sglang"
    nccl_version: str | None = None
    force: bool = False


@dataclass(frozen=True)
class Source:
    """What is known: a run with its fit, or nothing; the engine's path; the NCCL installed here."""

    fit: Fit | None = None
    manifest: Manifest | None = None
    measurements: list[Measurement] = field(default_factory=list)
    run_path: str = ""
    bytes_per_token: int | None = None
    engine_path: EnginePath | None = None
    nccl_at_hand: Version | None = None


def build(source: Source, options: Options) -> Document:
    """Return the document; raises InputError (cannot be done) or QualityError (should not be done without --force)."""
    objective = parse_objective(options.objective)
    spec = _speculation(options)
    if options.format == "sglang-args" and source.fit is None:
        return Document(
            speculation=spec, engine_flags=_engine_flags(options), facts=_facts(source, options, None, None)
        )
    chosen = _select(source, options)
    measured = _measured_version(source)
    target = grammar.parse_version(options.nccl_version) if options.nccl_version else measured or source.nccl_at_hand
    where = decode_sizes(decode_limit(source.bytes_per_token))
    reduced = minimal_set(source.fit, chosen.setting, where) if source.fit is not None and not options.full else None
    env = {n: v for n, v in chosen.setting.env.items() if reduced is None or n in reduced.kept}
    machine = source.manifest.machine if source.manifest else None
    notes = [
        *safety.engine_notes(source.engine_path if env else None),
        *(safety.prefill_notes(chosen.prefill, options.max_prefill_cost_percent, accepted=objective.stated, has_gain=bool(env))
          if source.fit is not None else []),
        *safety.ll128_notes(env, machine, _of_setting(source.measurements, chosen, env)),
        *safety.version_notes(measured, target if options.nccl_version else source.nccl_at_hand),
        *safety.grammar_notes(env, target),
        *_backend_notes(source, env),
    ]  # fmt: skip
    _refuse(notes, options)
    rules, rule_notes = _rules(source, options)
    warnings = [*chosen.notes, *(f"{n.text}{f' ({n.do})' if n.do else ''}" for n in notes), *rule_notes]
    variables = _variables(source, options, env, reduced, target, safety.ll128_by_default(machine))
    return Document(
        variables=tuple(variables),
        header=tuple(_header(source, options, chosen, reduced, measured, spec)),
        speculation=spec,
        engine_flags=_engine_flags(options),
        rules=tuple(rules),
        facts=_facts(source, options, chosen, reduced),
        warnings=tuple(warnings),
    )


def _select(source: Source, options: Options) -> Selection:
    if source.fit is None:
        return named_only(options.setting)
    return select(source.fit, options.setting, parse_objective(options.objective), source.bytes_per_token)


def _speculation(options: Options) -> Any:
    if options.draft_tokens is None:
        if options.format == "sglang-args" and not options.disable_custom_all_reduce:
            raise InputError(
                "sglang-args has nothing to print", "no number of draft tokens was given", "give --draft-tokens N"
            )
        if options.num_steps is not None or options.eagle_topk != 1 or options.draft_model:
            raise InputError(
                "--steps, --topk and --draft-model belong to --draft-tokens", "", "give --draft-tokens N as well"
            )
        return None
    return sglang_args.speculation(options.draft_tokens, options.num_steps, options.eagle_topk, options.draft_model)


def _engine_flags(options: Options) -> tuple[str, ...]:
    return ("--disable-custom-all-reduce",) if options.disable_custom_all_reduce else ()


def _measured_version(source: Source) -> Version | None:
    library = source.manifest.machine.nccl if source.manifest else None
    return grammar.parse_version(library.version) if library is not None else None


def _of_setting(measurements: list[Measurement], chosen: Selection, env: dict[str, str]) -> list[Measurement]:
    """Measurements of the chosen set, seen as measurements of what is left of it (the same NCCL choice)."""
    whole = [m for m in measurements if m.setting.env in (env, chosen.setting.env)]
    return [m.model_copy(update={"setting": m.setting.model_copy(update={"env": env})}) for m in whole]


def _backend_notes(source: Source, env: dict[str, str]) -> list[Note]:
    if source.manifest is None or source.manifest.backend != "gloo":
        return []
    text = "measured with gloo between CPU processes, which reads no NCCL variable: this says nothing about NCCL"
    return [Note("gloo", text, "scan on the GPU machine", hard=bool(env))]


def _refuse(notes: list[Note], options: Options) -> None:
    hard = [note for note in notes if note.hard]
    if hard and not options.force:
        raise QualityError("nothing was written: " + hard[0].text, "; ".join(n.text for n in hard[1:]),
                           f"{hard[0].do}{'; ' if hard[0].do else ''}--force writes it all the same")  # fmt: skip


def _rules(source: Source, options: Options) -> tuple[list[Any], list[str]]:
    if options.format != "tuner-csv":
        return [], []
    if source.fit is None:
        raise InputError("a tuner CSV needs a run", "its rows are the best choice per measured size", "give --run RUN")
    from nccltune.emit.policy import rules

    return rules(source.fit)


def _variables(source: Source, options: Options, env: dict[str, str], reduced: MinimalSet | None, target: Version | None,
               ll128_auto: bool) -> list[Variable]:  # fmt: skip
    base_env = source.fit.base_env or BASES.get(source.fit.base, {}) if source.fit is not None else BASES[options.base]
    by = (
        "SGLang sets it by itself"
        if (source.fit.base if source.fit else options.base) == "sglang"
        else "part of the base"
    )
    found = [
        Variable(n, v, f"{by}; written so that what runs is what was measured")
        for n, v in sorted(base_env.items())
        if n not in env
    ]
    for name, value in sorted(env.items()):
        comments = [str(reduced.kept[name])] if reduced is not None and name in reduced.kept else []
        if name in grammar.TOKENS:
            rendered = grammar.render(name, value, target, ll128_auto=ll128_auto)
            comments += rendered.notes
            value = rendered.value
        found.append(Variable(name, value, "; ".join(comments)))
    return found


def _header(source: Source, options: Options, chosen: Selection, reduced: MinimalSet | None, measured: Version | None,
            spec: Any) -> list[str]:  # fmt: skip
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    lines = [
        f"{MARK} --format {options.format} (nccltune {__version__}, {now})",
        f"command: {shlex.join(command_line())}",
    ]
    fit, manifest = source.fit, source.manifest
    if fit is not None:
        lines.append(f"machine: {_machine(source)}")
        version = safety.dotted(measured) if measured else "none"
        backend = f", back end {manifest.backend}" if manifest else ""
        lines.append(
            f"measured: run {fit.run_id} of {fit.created_at[:10]}, NCCL {version}, {fit.num_ranks} ranks{backend}, {fit.timing} timing"
        )
    lines.append(
        f"setting: {chosen.setting.name}"
        + (f" ({chosen.setting.id})" if chosen.setting.env and chosen.setting.id != chosen.setting.name else "")
    )
    if fit is not None and chosen.setting.env:
        lines.append(f"gain at decode: {chosen.decode or 'decode sizes were not measured'}")
        lines.append(f"at prefill: {chosen.prefill or 'prefill sizes were not measured'}")
        if chosen.tied:
            lines.append(f"tied with it: {', '.join(chosen.tied)}")
    for name, why in (reduced.dropped if reduced else {}).items():
        lines.append(f"left out: {name}={chosen.setting.env[name]} ({why})")
    if spec is not None and options.format != "sglang-args":
        lines.append(
            "engine flags: "
            + " ".join(sglang_args.flags(Document(speculation=spec, engine_flags=_engine_flags(options))))
        )
    from nccltune.emit import formats

    lines.append(f"use: {formats.get(options.format).USE}")
    lines.append("NCCL reads these when it starts: restart the server after a change")
    return lines


def _machine(source: Source) -> str:
    assert source.fit is not None
    if source.manifest is None:
        return source.fit.machine
    machine = source.manifest.machine
    counts: dict[str, int] = {}
    for gpu in machine.gpus:
        counts[gpu.name] = counts.get(gpu.name, 0) + 1
    gpus = ", ".join(f"{count}x {name}" for name, count in counts.items()) or machine.cpu_model
    return f"{gpus}" + (f", driver {machine.driver_version}" if machine.driver_version else "")


def _facts(source: Source, options: Options, chosen: Selection | None, reduced: MinimalSet | None) -> dict[str, Any]:
    fit, measured = source.fit, _measured_version(source)
    return {
        "nccltune_version": __version__,
        "created_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command_line(),
        "format": options.format,
        "run_id": fit.run_id if fit else None,
        "machine": _machine(source) if fit else None,
        "nccl_version_measured": safety.dotted(measured) if measured else None,
        "objective": options.objective or "decode",
        "setting": {"name": chosen.setting.name, "env": chosen.setting.env} if chosen else None,
        "gain_at_decode": chosen.decode.to_json() if chosen and chosen.decode else None,
        "gain_at_prefill": chosen.prefill.to_json() if chosen and chosen.prefill else None,
        "tied_with": list(chosen.tied) if chosen else [],
        "kept": {n: {"gain": e.gain.to_json() if e.gain else None, "evidence": e.how} for n, e in reduced.kept.items()}
        if reduced
        else None,
        "left_out": dict(reduced.dropped) if reduced else {},
    }
