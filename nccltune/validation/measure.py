"""One arm: warm up, hold the batch a few times, and read what server and client saw."""

import datetime
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nccltune.schemas.setting import Setting
from nccltune.schemas.validation import Measured
from nccltune.schemas.validation_record import ArmRecord, Trouble
from nccltune.validation import load, prompts, state
from nccltune.validation.client import Client, ServerError
from nccltune.validation.observation import measured_of

_MIN_SERVER_SAMPLES = 3
_CLOCKS_APART = 0.03
_HELD_SHARE = 0.5


@dataclass(frozen=True)
class LoadOptions:
    """The fixed load of every arm. ``context_tokens``: mean context of the measured steps."""

    context_tokens: int = 1024
    output_tokens: int = 256
    repeats: int = 3
    stall_s: float = 120.0
    own_prompts: Sequence[dict[str, Any]] = field(default_factory=tuple)
    profile_steps: int = 0

    @property
    def input_tokens(self) -> int:
        """Prompt length that gives the context at half of the output."""
        return max(self.context_tokens - self.output_tokens // 2, 1)


@dataclass(frozen=True, slots=True)
class ArmPlan:
    """What is measured."""

    setting: Setting
    draft_tokens: int
    batch_size: int

    @property
    def id(self) -> str:
        """Stable name of the arm."""
        return f"{self.setting.id} | D={self.draft_tokens} | batch={self.batch_size}"


def measure_arm(client: Client, plan: ArmPlan, options: LoadOptions, log: Path | None, trace_folder: Path) -> ArmRecord:
    """Measure one arm; whatever fails is in the record."""
    began = time.monotonic()
    record = ArmRecord(
        arm_id=plan.id, setting=plan.setting, draft_tokens=plan.draft_tokens, batch_size=plan.batch_size, status="failed",
        phase="decode" if plan.draft_tokens == 1 else "cycle", created_at=now(),
    )  # fmt: skip
    try:
        found = _measured(client, plan, options, log)
        if options.profile_steps:
            from nccltune.validation.profiling import traced

            found |= traced(client, plan, options, trace_folder, found)
        record = record.model_copy(update={**found, "status": "ok"})
    except ServerError as error:
        record = record.model_copy(
            update={"error": Trouble.model_validate({"kind": error.kind, "message": error.message})}
        )
    return record.model_copy(update={"seconds": round(time.monotonic() - began, 2)})


def now() -> str:
    """The time as every record writes it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def arm_prompts(info: dict[str, Any], plan: ArmPlan, options: LoadOptions, repeat: int) -> list[dict[str, Any]]:
    """Prompts of one repetition; every repetition has its own, so that no cache helps the later ones."""
    if options.own_prompts:
        return prompts.take(options.own_prompts, plan.batch_size, repeat * plan.batch_size)
    as_ids = info.get("skip_tokenizer_init") is True
    return prompts.make_prompts(
        plan.batch_size, options.input_tokens, as_ids=as_ids, seed=1000 * plan.batch_size + repeat
    )


def _measured(client: Client, plan: ArmPlan, options: LoadOptions, log: Path | None) -> dict[str, Any]:
    info = client.server_info()
    drafted = plan.draft_tokens > 1
    load.hold(client, arm_prompts(info, plan, options, -1), min(options.output_tokens, 32), options.stall_s)  # warm-up
    mark = log.stat().st_size if log and log.is_file() else 0
    held, recorded = [], []
    before = state.step_times(client.server_info())
    for repeat in range(options.repeats):
        streams = load.hold(client, arm_prompts(info, plan, options, repeat), options.output_tokens, options.stall_s)
        held.append(load.measure(streams, drafted=drafted))
        after = state.step_times(client.server_info())
        # The first interval of a load began before it: it holds idle time and the prefill. No other does, so none is left out for its value.
        recorded += state.new_step_times(before, after, plan.batch_size)[1:]
        before = after
    info = client.server_info()
    client_ms = statistics.median(h.step_ms for h in held)
    samples, timing = _samples([1e3 * s for s in recorded], [h.step_ms for h in held])
    measured = measured_of(samples)
    text = _log_since(log, mark)
    lengths = state.accept_lengths(client, info, text) if drafted else {}
    tokens, verifies = sum(h.num_tokens for h in held), sum(h.num_verifies for h in held)
    accept = tokens / verifies if drafted and verifies else None
    if accept is not None:
        lengths = {"requests": accept, **lengths}
    return {
        "time_ms": measured, "timing": timing, "samples_ms": [round(s, 5) for s in samples], "client_ms": client_ms,
        "context_tokens": round(statistics.mean(h.context_tokens for h in held)), "accept_length": accept, "accept_lengths": lengths,
        "tokens_per_s": statistics.median(h.tokens_per_s for h in held), "engine": f"SGLang {state.version_of(info)}".strip(),
        "warnings": _warnings(held, measured, client_ms, plan, accept, recorded, text),
    }  # fmt: skip


def _samples(server_ms: list[float], client_ms: list[float]) -> tuple[list[float], str]:
    """Prefer the server's own clock, where it recorded enough."""
    if len(server_ms) >= _MIN_SERVER_SAMPLES:
        return server_ms, "server (step_time_dict of /server_info, SGLANG_RECORD_STEP_TIME=1)"
    return client_ms, "client (streamed chunks while every request decodes)"


def _log_since(log: Path | None, mark: int) -> str:
    if log is None:
        return ""
    try:
        with log.open("rb") as file:
            file.seek(mark)
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def _warnings(
    held: Sequence[load.Held], measured: Measured, client_ms: float, plan: ArmPlan, accept: float | None,
    recorded: Sequence[float], log: str,
) -> list[str]:  # fmt: skip
    found = []
    apart = client_ms / measured.value - 1
    if abs(apart) > _CLOCKS_APART:
        found.append(f"the client's clock says {client_ms:.2f} ms, {100 * apart:+.1f}% from the server's")
    share = min(h.share for h in held)
    if share < _HELD_SHARE:
        found.append(f"the batch was whole for only {100 * share:.0f}% of the decode: raise --output-tokens")
    if not recorded:
        found.append(
            f"the server recorded no step times at batch {plan.batch_size} (SGLANG_RECORD_STEP_TIME=1 in its environment)"
        )
    if plan.draft_tokens > 1 and accept is None:
        found.append("the server counted no verifies: is speculation on?")
    if accept is not None and accept < 1.02:
        found.append("almost no draft was accepted (a dummy drafter?): the cycle is right, the tokens/s are not")
    if re.search(r"Decode batch.* graph: False", log):
        found.append("decode ran without a CUDA graph: the prediction is of a graph")
    return found
