"""A torch profiler trace of a few steps through the server's own endpoints: all-reduces and verify time of the engine."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nccltune.errors import NccltuneError
from nccltune.schemas.trace import TraceReport
from nccltune.schemas.validation import Measured
from nccltune.validation import load
from nccltune.validation.client import Client, ServerError
from nccltune.validation.trace import analyze
from nccltune.validation.trace_file import read_trace

if TYPE_CHECKING:
    from nccltune.validation.measure import ArmPlan, LoadOptions

_WRITE_LIMIT_S = 180.0  # ranks write their traces after the last step; tens of MB each


def traced(
    client: Client, plan: "ArmPlan", options: "LoadOptions", folder: Path, found: dict[str, Any]
) -> dict[str, Any]:
    """Profile ``profile_steps`` decode steps under the arm's load. A trace that fails is a warning: the arm stands."""
    from nccltune.validation.measure import arm_prompts

    warnings = list(found["warnings"])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        info = client.server_info()
        body = {"output_dir": str(folder.absolute()), "num_steps": options.profile_steps, "activities": ["CPU", "GPU"]}
        prompts = arm_prompts(info, plan, options, options.repeats)
        _start(client, body)
        load.hold(client, prompts, options.output_tokens, options.stall_s)
        report = _report(folder)
    except (ServerError, NccltuneError, OSError) as error:
        return {"warnings": [*warnings, f"no trace: {error}"]}
    update: dict[str, Any] = {"trace": report.model_dump(mode="json"), "warnings": warnings}
    if report.target is not None and plan.draft_tokens > 1:
        ms = report.target.span_us / 1e3
        update["verify_ms"] = Measured(value=ms, low=ms, high=ms, num_samples=report.target.num_forwards)
    return update


def _start(client: Client, body: dict[str, Any]) -> None:
    try:
        client.json("/start_profile", body, timeout_s=60)
    except ServerError as error:
        if error.kind != "garbage":  # it answers in plain text
            raise


def _report(folder: Path) -> TraceReport:
    """Wait for the trace of rank 0 to be written whole, and read it."""
    deadline = time.monotonic() + _WRITE_LIMIT_S
    sizes: dict[Path, int] = {}
    while time.monotonic() < deadline:
        files = sorted(folder.rglob("*.trace.json*")) or sorted(folder.rglob("*.json.gz"))
        now = {file: file.stat().st_size for file in files}
        if now and now == sizes:
            rank_zero = [f for f in files if "TP-0" in f.name] or files
            return analyze(read_trace(rank_zero[-1]), inputs=(rank_zero[-1].name,))
        sizes = now
        time.sleep(1.0)
    raise ServerError("request_failed", f"the profiler wrote nothing within {_WRITE_LIMIT_S:.0f} s")
