"""From a run (or a shipped setting) to the document that the formats render: choose, reduce, rewrite, check, explain."""

from dataclasses import asdict, replace

from nccltune.algo_lists import TOKENS
from nccltune.emit import grammar, safety, sglang_args
from nccltune.emit.document import HOLDS, Document, Rule, Speculation, Variable
from nccltune.emit.gain import decode_limit
from nccltune.emit.header import confirmation_of, facts, header_lines
from nccltune.emit.minimal import MinimalSet, minimal_set
from nccltune.emit.request import Options, Source
from nccltune.emit.safety import Note
from nccltune.emit.selection import (
    Selection,
    against_base,
    named_only,
    parse_objective,
    select,
    sizes_that_count,
)
from nccltune.errors import InputError, QualityError
from nccltune.knobs import BASES, Version
from nccltune.schemas.measurement import Measurement
from nccltune.schemas.setting import BASE, Setting

OLDEST_PLUGIN: Version = (2, 22, 0)
"""First NCCL that loads the plugin's oldest interface, v3 (nccltune/tuner/plugin.c)."""


def build(source: Source, options: Options) -> Document:
    """Return the document; raises InputError (cannot be done) or QualityError (should not be done without --force)."""
    parse_objective(options.objective)
    spec = _speculation(options)
    if options.format == "sglang-args" and source.fit is None:
        return Document(speculation=spec, engine_flags=options.engine_flags, facts=facts(source, options, None, None))
    target = (
        grammar.parse_version(options.nccl_version)
        if options.nccl_version
        else source.nccl_measured or source.nccl_at_hand
    )
    limit = decode_limit(source.bytes_per_token)
    chosen = _select(source, options)
    ranges = sizes_that_count(parse_objective(options.objective), limit)
    reduced = minimal_set(source.fit, chosen.setting, *ranges) if source.fit is not None else None
    env = {n: v for n, v in chosen.setting.env.items() if options.full or reduced is None or n in reduced.kept}
    if options.format == "tuner-plugin":
        return _per_size(source, options, env, target)
    chosen = _exactly(source, chosen, env, limit)
    notes = _notes(source, options, chosen, env, target)
    _refuse(notes, options)
    rules, rule_notes = _rules(source, options)
    variables = tuple(_variables(source, options, env, reduced, target))
    first, *lines = header_lines(source, options, chosen, reduced, target, spec, env)
    holds = f"{HOLDS}{len(rules) or len(variables)} {'rules' if rules else 'variables'}"
    return Document(
        variables=variables,
        header=(first, holds, *lines),
        speculation=spec,
        engine_flags=options.engine_flags,
        rules=tuple(rules),
        facts=facts(source, options, chosen, reduced),
        warnings=(*chosen.notes, *(f"{n.text}{f' ({n.do})' if n.do else ''}" for n in notes), *rule_notes),
    )


def _per_size(source: Source, options: Options, env: dict[str, str], target: Version | None) -> Document:
    """The document of a tuner plugin: rules from every curve that shares the chosen set's other variables ``env``."""
    from nccltune.emit.tuner_rules import inexpressible, plugin_plan

    if source.fit is None:
        raise InputError(
            "a tuner policy needs a run", "its rules are the best choice per measured size", "give --run RUN"
        )
    plan = plugin_plan(source.fit, inexpressible(env), ll128_by_default=_ll128_by_default(source, env))
    at_hand = target if options.nccl_version else source.nccl_at_hand
    notes = [*safety.version_notes(source.nccl_measured, at_hand), *safety.engine_notes(source.engine_path)]
    if target is not None and target < OLDEST_PLUGIN:
        text = f"NCCL {safety.dotted(target)} does not load this plugin: it needs NCCL {safety.dotted(OLDEST_PLUGIN)} or later"
        notes.append(Note("plugin-version", text, "use a newer NCCL, or one setting for all sizes", hard=True))
    _refuse(notes, options)
    return Document(
        variables=tuple(_variables(source, options, plan.env, None, target)),
        header=(*header_lines(source, options, Selection(BASE), None, target, None, {}), *plan.evidence),
        rules=tuple(plan.rules),
        facts={**facts(source, options, None, None), "rules": [asdict(rule) for rule in plan.rules]},
        warnings=(*(f"{n.text}{f' ({n.do})' if n.do else ''}" for n in notes), *plan.notes),
    )


def _select(source: Source, options: Options) -> Selection:
    if source.fit is None:
        return named_only(options.setting)
    if options.format == "tuner-csv":
        return Selection(BASE)  # its rows come from every curve, not from one setting
    if options.setting == "best" and source.manifest is not None and source.manifest.backend == "gloo":
        return Selection(BASE, notes=("gloo between CPU processes reads no NCCL variable: only the base is written",))
    return select(source.fit, options.setting, parse_objective(options.objective), source.bytes_per_token)


def _exactly(source: Source, chosen: Selection, env: dict[str, str], limit: int) -> Selection:
    """The gains of what is written, where exactly that was measured; otherwise those of the whole set, and a note."""
    if source.fit is None or env == chosen.setting.env or not env:
        return chosen
    kept = against_base(source.fit, Setting.make(env), limit)
    if kept.decode is None:
        note = "exactly this set was not measured; the gains are those of the whole set"
        return replace(chosen, notes=(*chosen.notes, note))
    return replace(chosen, decode=kept.decode, prefill=kept.prefill)


def _notes(
    source: Source, options: Options, chosen: Selection, env: dict[str, str], target: Version | None
) -> list[Note]:
    """Every safety check. (A tuner CSV has none but the version: the plugin cannot force a pair that NCCL lacks.)"""
    stated = parse_objective(options.objective).stated
    at_hand = target if options.nccl_version else source.nccl_at_hand
    notes = safety.version_notes(source.nccl_measured, at_hand) if env or options.format == "tuner-csv" else []
    if not env:
        return notes
    if source.fit is not None:
        notes += safety.engine_notes(source.engine_path)
        notes += safety.prefill_notes(chosen.prefill, options.max_prefill_cost_percent, accepted=stated)
        notes += safety.decode_notes(chosen.decode)
    notes += safety.name_notes(env)
    notes += safety.value_notes(env, target)
    notes += _confirmation_notes(source, env)
    machine = source.manifest.machine if source.manifest else None
    base = source.fit.base_env if source.fit else {}
    notes += safety.ll128_notes(env, machine, _of_setting(source.measurements, chosen, env), base)
    notes += safety.grammar_notes(env, target)
    if source.manifest is not None and source.manifest.backend == "gloo":
        text = "measured with gloo between CPU processes, which reads no NCCL variable: this says nothing about NCCL"
        notes.append(Note("gloo", text, "scan on the GPU machine", hard=True))
    return notes


def _ll128_by_default(source: Source, env: dict[str, str]) -> bool:
    base = source.fit.base_env if source.fit else {}
    return safety.ll128_by_default(source.manifest.machine if source.manifest else None, {**base, **env})


def _confirmation_notes(source: Source, env: dict[str, str]) -> list[Note]:
    """Refuse a set that failed, or under which another collective of the engine failed, when the scan confirmed it."""
    found = confirmation_of(source, env)
    if found is None:
        return []
    notes = [
        Note("collectives", f"{name} fails under it: {fault}", "choose another setting", hard=True)
        for name, fault in (found.other_collectives or {}).items()
        if fault
    ]
    if found.problem:
        text = f"launched again exactly as it is written, it failed: {found.problem}"
        notes.append(Note("confirmation", text, "choose another setting, or scan again", hard=True))
    return notes


def _of_setting(measurements: list[Measurement], chosen: Selection, env: dict[str, str]) -> list[Measurement]:
    """Measurements of the chosen set, seen as measurements of what is left of it (the same NCCL choice)."""
    whole = [m for m in measurements if m.setting.env in (env, chosen.setting.env)]
    return [m.model_copy(update={"setting": m.setting.model_copy(update={"env": env})}) for m in whole]


def _refuse(notes: list[Note], options: Options) -> None:
    hard = [note for note in notes if note.hard]
    if hard and not options.force:
        advice = f"{hard[0].do}; --force writes it all the same" if hard[0].do else "--force writes it all the same"
        raise QualityError(f"nothing was written: {hard[0].text}", "; ".join(n.text for n in hard[1:]), advice)


def _speculation(options: Options) -> Speculation | None:
    if options.draft_tokens is not None:
        return sglang_args.speculation(options.draft_tokens, options.num_steps, options.eagle_topk, options.draft_model)
    if options.format == "sglang-args" and not options.engine_flags:
        raise InputError(
            "sglang-args has nothing to print", "no number of draft tokens was given", "give --draft-tokens N"
        )
    if options.num_steps is not None or options.eagle_topk != 1 or options.draft_model:
        raise InputError(
            "--steps, --topk and --draft-model belong to --draft-tokens", "", "give --draft-tokens N as well"
        )
    return None


def _rules(source: Source, options: Options) -> tuple[list[Rule], list[str]]:
    if options.format != "tuner-csv":
        return [], []
    if source.fit is None:
        raise InputError("a tuner CSV needs a run", "its rows are the best choice per measured size", "give --run RUN")
    from nccltune.emit.policy import rules

    return rules(source.fit)


def _variables(
    source: Source, options: Options, env: dict[str, str], reduced: MinimalSet | None, target: Version | None
) -> list[Variable]:
    """The base's variables that the setting does not change, then the setting's, all-reduce's lists rewritten."""
    base = source.fit.base if source.fit else options.base
    base_env = (source.fit.base_env if source.fit else {}) or BASES.get(base, {})
    measured = "; written so that what runs is what was measured" if source.fit else ""

    def why(name: str, value: str) -> str:
        if BASES.get(base, {}).get(name) != value:
            return f"in the base of the scan (--base-set), the reference included{measured}"
        return ("SGLang sets it by itself" if base == "sglang" else f"part of the base '{base}'") + measured

    found = [Variable(n, value, why(n, value)) for n, value in sorted(base_env.items()) if n not in env]
    ll128_auto = _ll128_by_default(source, env)
    for name, value in sorted(env.items()):
        comments = []
        if reduced is not None:
            comments.append(str(reduced.kept[name]) if name in reduced.kept else reduced.dropped[name])
        if name in TOKENS:
            rendered = grammar.render(name, value, target, ll128_auto=ll128_auto)
            comments += rendered.notes
            value = rendered.value
        found.append(Variable(name, value, "; ".join(comments)))
    return found
