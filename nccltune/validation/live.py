"""``validate sglang`` start to end: plan, run or resume, compare. What a dry run prints is made here too."""

import datetime
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nccltune.costmodel.cautions import ENGINE_MAY_NOT_ASK_NCCL
from nccltune.errors import InputError, NccltuneError, QualityError
from nccltune.knobs import find_setting
from nccltune.schemas.points import Point
from nccltune.schemas.validation import Measured, Validation
from nccltune.schemas.validation_record import ArmRecord, ServerRecord
from nccltune.store import Run
from nccltune.validation import arms as planning
from nccltune.validation.architecture import architectures
from nccltune.validation.arms import ServerPlan
from nccltune.validation.measure import ArmPlan
from nccltune.validation.points import names_of, validate_points
from nccltune.validation.predictor import Subject, make_predictor
from nccltune.validation.prompts import read_prompts
from nccltune.validation.records import Folder
from nccltune.validation.request import LiveRequest
from nccltune.validation.session import Progress, Session, attached_width

_MAX_CALIBRATED = 4


def validate_sglang(
    request: LiveRequest | None,
    output: Path | None,
    resume: Path | None,
    on_progress: Callable[[Progress], None] | None,
) -> tuple[Validation, Path]:
    """Run every arm that is not done yet, compare, and return the comparison with its folder.

    Raises InputError before anything starts, InterruptedRunError with what is done saved, QualityError when no arm worked.
    """
    if resume is not None:
        folder, request = Folder.load(resume)
    elif request is None:
        raise InputError("nothing to validate", "", "give --model-path and --model, or --resume FOLDER")
    else:
        folder = None
    request, plans = _checked(request)
    if folder is None:
        folder = Folder.create(output or _default_folder(), request)
    Session(request, folder, on_progress or (lambda _: None)).run(plans)
    found = compare_folder(folder, request)
    folder.save(found)
    return found, folder.path


def plan_document(request: LiveRequest | None, resume: Path | None) -> dict[str, Any]:
    """Return what would run: commands, variables, arms, and about how long it takes."""
    folder = None
    if resume is not None:
        folder, request = Folder.load(resume)
    assert request is not None
    request, plans = _checked(request)
    done = {a.arm_id for a in folder.arms().values() if a.status == "ok"} if folder else set()
    starts = [s.start_s for s in folder.servers() if s.start_s] if folder else []
    start_s = sorted(starts)[len(starts) // 2] if starts else planning.ASSUMED_START_S
    servers = [_planned(request, plan, done) for plan in plans]
    load_s, unknown = _load_seconds(request, [arm for plan in plans for arm in plan.arms if arm.id not in done])
    to_start = 0 if request.attach else sum(any(not a["done"] for a in s["arms"]) for s in servers)
    return {
        "servers": servers, "num_servers": to_start, "num_arms": sum(len(s["arms"]) for s in servers), "num_done": len(done),
        "seconds": round(to_start * start_s + load_s), "start_s": start_s, "start_source": "measured in this folder" if starts else "assumed",
        "num_arms_without_estimate": unknown,
    }  # fmt: skip


def compare_folder(folder: Folder, request: LiveRequest) -> Validation:
    """Compare what a folder holds with predictions; raises QualityError when no arm worked."""
    arms, servers = list(folder.arms().values()), folder.servers()
    good = [arm for arm in arms if arm.status == "ok"]
    if not good:
        first = next((a.error for a in arms if a.error), None)
        why = f"{first.kind}: {first.message}" if first else "no arm was run"
        raise QualityError("no arm was measured", why, f"see {folder.path} (logs, records.jsonl), then use --resume {folder.path}")  # fmt: skip
    points, measured = _points(good, _calibrated(request))
    subject = _subject(request)
    found = validate_points(points, subject, request.tolerance, inputs=[folder.path.name], measured=measured)
    failed = [a for a in arms if a.status != "ok"]
    planned = {arm.id for plan in planning.plan_servers(request) for arm in plan.arms}
    summary = found.summary.model_copy(update={"num_not_measured": len(planned - {a.arm_id for a in good})})
    extra = [f"{len(failed)} of {len(arms)} arms failed: {failed[0].error.kind}: {failed[0].error.message}"] if failed and failed[0].error else []  # fmt: skip
    extra += _engine_warnings(servers)
    extra += dict.fromkeys(w for server in servers for w in server.warnings)
    extra += [f"{arm.arm_id}: {w}" for arm in good for w in arm.warnings]
    # What these servers use is known: no need to say what others may use.
    rest = [w for w in found.warnings if w != ENGINE_MAY_NOT_ASK_NCCL or not all(s.all_reduce.get("path") for s in servers if s.status == "ok")]  # fmt: skip
    return found.model_copy(update={"summary": summary, "servers": [s.model_dump(mode="json") for s in servers], "warnings": [*extra, *rest]})  # fmt: skip


def _checked(request: LiveRequest) -> tuple[LiveRequest, list[ServerPlan]]:
    """Everything that can be found wrong before a server starts."""
    if request.attach:
        request = attached_width(request)
    plans = planning.plan_servers(request)
    if not request.attach:
        planning.ranks_of(request)
    planned = [arm.id for plan in plans for arm in plan.arms]
    if lost := sorted(_calibrated(request) - set(planned)):
        raise InputError(f"--calibrate names {', '.join(lost)}, which is not measured", f"the arms are {', '.join(planned[:8])}{', ...' if len(planned) > 8 else ''}", "name one of them as SETTING:BATCH:DRAFT_TOKENS, or measure it too")  # fmt: skip
    if request.prompts:
        read_prompts(Path(request.prompts))
    with architectures(_subject(request)) as resolved:
        make_predictor(resolved, []).used()
    return request, plans


def _subject(request: LiveRequest) -> Subject:
    return Subject(
        request.model, request.run_path, request.profile, request.topology, request.drafter, request.tp, request.context
    )


def _calibrated(request: LiveRequest) -> set[str]:
    """Ids of the arms to calibrate on."""
    known = names_of(_subject(request))
    fit = Run.load(request.run_path).load_fit() if request.run_path else None
    if fit is not None:
        known["best"] = known[fit.best] if fit.best else find_setting("base")
    found = set()
    for text in request.calibrate:
        name, *numbers = text.rsplit(":", 2)
        if len(numbers) != 2 or not all(n.isdigit() and int(n) >= 1 for n in numbers):
            raise InputError(f"--calibrate {text} is not an arm", "", "write SETTING:BATCH:DRAFT_TOKENS, for example base:1:3")  # fmt: skip
        found.add(ArmPlan(find_setting(name or "base", known), int(numbers[1]), int(numbers[0])).id)
    if len(found) > _MAX_CALIBRATED:
        raise InputError(f"{len(found)} arms to calibrate on", f"at most {_MAX_CALIBRATED}: the others are what is tested", "name fewer")  # fmt: skip
    return found


def _points(arms: Sequence[ArmRecord], calibrated: set[str]) -> tuple[list[Point], list[Measured]]:
    points, measured = [], []
    for arm in arms:
        assert arm.time_ms is not None
        use = "calibrate" if arm.arm_id in calibrated else "score"
        # Rounding of a mean over requests must not push it above what a verify can emit.
        accept = None if arm.accept_length is None else min(max(arm.accept_length, 1.0), float(arm.draft_tokens))
        times = [(arm.phase, arm.time_ms)] + ([("verify", arm.verify_ms)] if arm.verify_ms else [])
        for phase, time in times:
            points.append(
                Point.model_validate({
                    "phase": phase, "batch_size": arm.batch_size, "draft_tokens": arm.draft_tokens, "context_tokens": arm.context_tokens,
                    "time_ms": time.value, "accept_length": accept if phase == "cycle" else None, "setting": arm.setting, "engine": arm.engine,
                    "use": use, "source": arm.timing if phase != "verify" else "profiler trace",
                })
            )  # fmt: skip
            measured.append(time)
    return points, measured


def _engine_warnings(servers: Sequence[ServerRecord]) -> list[str]:
    """Which all-reduce the engine used, and how accept lengths came about."""
    found = []
    paths = {s.all_reduce["path"]: s.all_reduce for s in servers if s.all_reduce.get("path")}
    for path, facts in paths.items():
        if facts.get("nccl_settings_matter") is False:
            found.append(f"NCCL settings do not matter on this server: its all-reduce is {path} ({facts['reason']}); {facts['how_to_change']}")  # fmt: skip
    kinds = dict.fromkeys(s.acceptance for s in servers if s.acceptance.startswith("simulated") and s.draft_tokens > 1)
    return found + [f"acceptance {text}" for text in kinds]


def _planned(request: LiveRequest, plan: ServerPlan, done: set[str]) -> dict[str, Any]:
    arms = [{"arm_id": a.id, "batch_size": a.batch_size, "done": a.id in done} for a in plan.arms]
    if request.attach:
        return {"server_id": plan.id, "attach": request.attach, "command": None, "env": {}, "arms": arms}
    env, dropped = planning.environment_of(request, plan)
    return {
        "server_id": plan.id, "command": shlex.join(planning.command_of(request, plan, request.port or 30000)),
        "env": planning.recorded_env(env), "dropped_env": dropped, "arms": arms,
    }  # fmt: skip


def _load_seconds(request: LiveRequest, arms: Sequence[ArmPlan]) -> tuple[float, int]:
    """Seconds of load by predicted step times; arms whose setting cannot be predicted are counted, not guessed."""
    from nccltune.validation.observation import Settings, measured_of, observe

    total, unknown = 0.0, 0
    with architectures(_subject(request)) as resolved:
        predictor = make_predictor(resolved, [])
        settings: Settings = predictor.settings
        for arm in arms:
            point = Point(phase="decode" if arm.draft_tokens == 1 else "cycle", batch_size=arm.batch_size, draft_tokens=arm.draft_tokens,
                          context_tokens=request.context, time_ms=1.0, setting=arm.setting)  # fmt: skip
            (seen,) = observe([point], settings, request.context, [measured_of([1.0])])
            found = predictor.predict(seen.priced_as, [seen])
            if isinstance(found, str):
                unknown += 1
                continue
            # Without a known acceptance a verify may emit a single token: the longest it can take.
            accept = min(request.simulate_accept_length or 1.0, float(arm.draft_tokens))
            steps = (request.repeats + 0.15) * request.output_tokens / accept
            total += steps * found[0].value / 1e3
    return total, unknown


def _default_folder() -> Path:
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    path = Path(f"validation-{stamp}")
    if path.exists():
        raise NccltuneError(f"{path} exists", "", "choose another place with -o")
    return path
