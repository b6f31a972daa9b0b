"""What an SGLang server says of itself: version, step times, accept lengths, which all-reduce it uses."""

import contextlib
import math
import re
from collections.abc import Mapping
from typing import Any, Literal

from nccltune.engine_path import EngineOptions, engine_allreduce_path
from nccltune.parse.engine_log import parse_engine_log
from nccltune.parse.engine_results import metrics
from nccltune.parse.numbers import number
from nccltune.validation.client import Client, ServerError

CHECKED_VERSION = "0.5.14"
"""SGLang whose flags, fields and messages this package was read from."""

_REFUSED = re.compile(r"custom all-?reduce is disabled", re.IGNORECASE)
StepTimes = dict[str, list[float]]


def version_of(info: Mapping[str, Any]) -> str:
    """Version of the server; empty where it does not say."""
    value = info.get("version")
    return value if isinstance(value, str) else ""


def version_warnings(info: Mapping[str, Any]) -> list[str]:
    """What to say about another version than the one that was read."""
    found = version_of(info)
    if found == CHECKED_VERSION:
        return []
    return [f"SGLang {found or 'of an unknown version'}: flags and fields were checked with {CHECKED_VERSION}"]


def step_times(info: Mapping[str, Any]) -> StepTimes:
    """Step times by running batch (seconds), with SGLANG_RECORD_STEP_TIME=1; empty without."""
    recorded = state_of(info).get("step_time_dict")
    if not isinstance(recorded, dict):
        return {}
    return {str(batch): [float(v) for v in values if _is_time(v)] for batch, values in recorded.items() if isinstance(values, list)}  # fmt: skip


def new_step_times(before: StepTimes, after: StepTimes, batch_size: int) -> list[float]:
    """Seconds a step that were recorded between two looks at one batch size."""
    key = str(batch_size)
    return after.get(key, [])[len(before.get(key, [])) :]


def state_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """The first scheduler's state."""
    states = info.get("internal_states")
    return states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}


def accept_lengths(client: Client, info: Mapping[str, Any], log: str) -> dict[str, float]:
    """Accept lengths by source; those of server info and metrics are averages over more than one arm."""
    found: dict[str, float] = {}
    value = number(state_of(info).get("avg_spec_accept_length"))
    if value is not None and value >= 1:
        found["server info, since start"] = value
    with contextlib.suppress(ServerError):
        records = metrics(client.text("/metrics"))
        length = next((r["accept_length"] for r in records if r.get("accept_length")), None)
        if length:
            found["metrics, last interval"] = float(length)
    from_log = parse_engine_log(log).accept_lengths if log else []
    if from_log:
        found["log, mean of decode lines"] = sum(from_log) / len(from_log)
    return found


def all_reduce(info: Mapping[str, Any], log: str, links: Literal["nvlink", "pcie"], architecture: str | None) -> dict[str, Any]:  # fmt: skip
    """Which all-reduce this server uses at decode sizes, and what that rests on."""
    lines = [line.strip() for line in log.splitlines() if _tells(line)]
    tp, nodes = info.get("tp_size"), info.get("nnodes")
    path = engine_allreduce_path(
        links, tp if isinstance(tp, int) else 1, nodes if isinstance(nodes, int) and nodes > 0 else 1,
        # Only a server whose fusion is on needs a capability here: its own decision stands for it.
        compute_capability="9.0" if _fusion(info) else None, model_architecture=architecture, options=_options(info, lines),
    )  # fmt: skip
    return {**path.to_json(), "log": [line[:300] for line in lines[:8]]}


def _options(info: Mapping[str, Any], lines: list[str]) -> EngineOptions:
    """What the server runs with, by its arguments; a refusal in its log overrules them."""
    refused = any(_REFUSED.search(line) for line in lines)

    def on(name: str) -> bool:
        return info.get(name) is True

    return EngineOptions(
        disable_custom_all_reduce=on("disable_custom_all_reduce") or refused,
        disable_flashinfer_fusion=_fusion(info) is False or on("enforce_disable_flashinfer_allreduce_fusion"),
        enable_symm_mem=on("enable_symm_mem"),
        enable_mscclpp=on("enable_mscclpp"),
        enable_torch_symm_mem=on("enable_torch_symm_mem"),
        enable_dp_attention=on("enable_dp_attention"),
        enable_deterministic_inference=on("enable_deterministic_inference"),
    )


def _fusion(info: Mapping[str, Any]) -> bool | None:
    """Whether FlashInfer's fusion is on; None where this version does not say."""
    if "flashinfer_allreduce_fusion_backend" not in info:
        return None
    return info["flashinfer_allreduce_fusion_backend"] not in (None, "", "none", "disabled")


def acceptance_of(env: Mapping[str, str]) -> str:
    """Say whether accept lengths are the drafter's own."""
    simulated = env.get("SGLANG_SIMULATE_ACC_LEN", "")
    with contextlib.suppress(ValueError):
        if float(simulated) > 0:
            return f"simulated: SGLANG_SIMULATE_ACC_LEN={simulated}; it tells nothing about the drafter"
    return "the drafter's own, on the prompts of the load"


def _tells(line: str) -> bool:
    low = line.lower()
    return "server_args=" not in low and any(
        word in low
        for word in (
            "custom allreduce",
            "custom all-reduce",
            "custom all reduce",
            "allreduce fusion",
            "using nccl==",
            "mscclpp",
            "symmetric memory",
        )
    )


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
