"""``validate sglang``: a server per (setting, draft tokens), its arms one after the other, every failure a record."""

import contextlib
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nccltune import registry
from nccltune.errors import InputError, InterruptedRunError
from nccltune.schemas.model import Model
from nccltune.schemas.validation_record import ArmRecord, Cleanup, ServerRecord, Trouble
from nccltune.validation import arms as planning
from nccltune.validation import state
from nccltune.validation.arms import ServerPlan
from nccltune.validation.client import Client, ServerError
from nccltune.validation.measure import ArmPlan, LoadOptions, measure_arm, now
from nccltune.validation.prompts import read_prompts
from nccltune.validation.records import Folder, done_ids
from nccltune.validation.request import LiveRequest
from nccltune.validation.servers import Server, free_port, tail, tail_lines

_READY_PROMPT = {"input_ids": [300, 301, 302, 303, 304, 305, 306, 307]}
"""Ids work with and without a tokenizer, and lie inside every vocabulary."""
_ENDS_SERVER = ("hang", "crash", "out_of_memory", "nccl")
"""After these the server is of no more use."""


@dataclass(frozen=True, slots=True)
class Progress:
    """One step, for whoever draws it."""

    text: str
    num_done: int
    num_total: int


@dataclass
class Session:
    """A running validation."""

    request: LiveRequest
    folder: Folder
    on_progress: Callable[[Progress], None]
    num_total: int = 0
    num_done: int = 0

    def say(self, text: str) -> None:
        """Report progress."""
        self.on_progress(Progress(text, self.num_done, self.num_total))

    def run(self, plans: Sequence[ServerPlan]) -> None:
        """Measure every arm that is not done yet; raises InterruptedRunError with what is done saved."""
        done = done_ids(self.folder.arms())
        self.num_total = sum(len(plan.arms) for plan in plans)
        self.num_done = sum(arm.id in done for plan in plans for arm in plan.arms)
        try:
            with _signals_as_interrupts():
                for plan in plans:
                    pending = [arm for arm in plan.arms if arm.id not in done]
                    if pending and not self._server(plan, pending):
                        self.say(
                            "stopped: the last server left something behind (see its record); the rest was not started"
                        )
                        return
        except KeyboardInterrupt:
            raise InterruptedRunError("interrupted", f"{self.num_done} of {self.num_total} arms are saved", f"go on with: nccltune validate sglang --resume {self.folder.path}") from None  # fmt: skip

    def _server(self, plan: ServerPlan, pending: Sequence[ArmPlan]) -> bool:
        """Run one server and its arms; False where the machine was not clean afterwards."""
        if self.request.attach:
            self._attached(plan, pending, self.request.attach)
            return True
        port = self.request.port or free_port()
        env, dropped = planning.environment_of(self.request, plan)
        log = self.folder.path / f"{_file_name(plan)}.log"
        server = Server(planning.command_of(self.request, plan, port), env, port, log)
        record = self._record(plan, server.argv, env, dropped, log.name)
        self.say(f"{plan.id}: starting the server on port {port}, log {log}")
        try:
            server.start()
            seconds = server.wait_ready(_READY_PROMPT, self.request.ready_limit_s)
            self.say(f"{plan.id}: first token after {seconds:.0f} s")
            record = record.model_copy(update={"start_s": round(seconds, 2)})
            record = self._measure(plan, pending, Client(server.url), server, record)
        except ServerError as error:
            record = self._failed(record, pending, error)
        except KeyboardInterrupt:
            record = record.model_copy(
                update={"status": "failed", "error": Trouble(kind="interrupted", message="stopped by the user")}
            )
            raise
        finally:
            # Nothing may stop the stopping: a second signal is held back until the group is gone.
            with _signals_ignored():
                cleanup = server.stop() if server.process is not None else None
            lines = tail_lines(log) if record.status == "failed" else []
            self.folder.append(record.model_copy(update={"cleanup": cleanup, "log_tail": lines}))
        return cleanup is None or self._is_clean(plan, cleanup)

    def _is_clean(self, plan: ServerPlan, cleanup: Cleanup) -> bool:
        """Say what was left behind. Memory alone may be another program's: the next server is tried, and says if it lacks."""
        if not cleanup.is_clean:
            self.say(
                f"{plan.id}: after stopping: port free {cleanup.port_free}, {cleanup.num_processes_left} processes left, GPU memory back {cleanup.gpu_memory_back}"
            )
        return cleanup.port_free and cleanup.num_processes_left == 0

    def _attached(self, plan: ServerPlan, pending: Sequence[ArmPlan], url: str) -> None:
        """Measure a server that somebody else runs: its width is what it says, its environment is not known."""
        client = Client(url)
        record = self._record(plan, [], {}, [], "")
        first = ", the first of --settings" if len(self.request.settings) > 1 else ""
        text = f"the variables of an attached server cannot be read: it is taken to run '{plan.setting.name}'{first}"
        record = record.model_copy(update={"warnings": [*record.warnings, text]})
        try:
            client.generate(_READY_PROMPT, 4, self.request.stall_s)
            record = self._measure(plan, pending, client, None, record)
        except ServerError as error:
            record = self._failed(record, pending, error)
        self.folder.append(record)

    def _measure(self, plan: ServerPlan, pending: Sequence[ArmPlan], client: Client, server: Server | None, record: ServerRecord) -> ServerRecord:  # fmt: skip
        info = client.server_info()
        _check_speculation(info, plan)
        log = tail(server.log) if server else ""
        record = record.model_copy(update={
            "engine": f"SGLang {state.version_of(info)}".strip(), "status": "ok", "warnings": [*record.warnings, *state.version_warnings(info)],
            "all_reduce": state.all_reduce(info, log, _links(self.request), _target(self.request).hf_architecture or None),
        })  # fmt: skip
        options = self._load_options()
        for position, arm in enumerate(pending):
            traces = (self.folder.path / "traces" / f"{_file_name(plan)}-b{arm.batch_size}").absolute()
            found = measure_arm(client, arm, options, server.log if server else None, traces)
            found = _with_cause(found, server)
            self.folder.append(found)
            self.num_done += 1
            self.say(f"{arm.id}: {_result(found)}")
            if found.error is not None and found.error.kind in _ENDS_SERVER:
                error = ServerError(found.error.kind, found.error.message)
                return self._failed(record, pending[position + 1 :], error)
        return record

    def _failed(self, record: ServerRecord, pending: Sequence[ArmPlan], error: ServerError) -> ServerRecord:
        """Record the failure for every arm that it costs."""
        trouble = Trouble.model_validate({"kind": error.kind, "message": error.message})
        for arm in pending:
            self.folder.append(
                ArmRecord(arm_id=arm.id, setting=arm.setting, draft_tokens=arm.draft_tokens, batch_size=arm.batch_size, status="failed",
                          error=trouble, phase="decode" if arm.draft_tokens == 1 else "cycle", created_at=now())
            )  # fmt: skip
            self.num_done += 1
        self.say(f"{record.server_id}: {trouble.kind}: {trouble.message}")
        return record.model_copy(update={"status": "failed", "error": trouble})

    def _record(
        self, plan: ServerPlan, argv: list[str], env: dict[str, str], dropped: list[str], log: str
    ) -> ServerRecord:
        warnings = []
        uniform = any(n.startswith("SGLANG_SIMULATE_") and n.endswith("_EXPERTS") for n in env)
        if self.request.simulate_accept_length and not uniform and _target(self.request).moe is not None:
            warnings.append(
                "a simulated acceptance makes all tokens equal: a MoE then reads too few experts, unless --env SGLANG_SIMULATE_UNIFORM_EXPERTS=1"
            )
        return ServerRecord(
            server_id=plan.id, setting=plan.setting, draft_tokens=plan.draft_tokens, argv=argv, env=planning.recorded_env(env) if env else plan.nccl_env,
            dropped_env=dropped, status="failed", acceptance=state.acceptance_of(env) if env else "not known: attached", log=log,
            warnings=warnings, created_at=now(),
        )  # fmt: skip

    def _load_options(self) -> LoadOptions:
        r = self.request
        own = read_prompts(Path(r.prompts)) if r.prompts else []
        return LoadOptions(r.context, r.output_tokens, r.repeats, r.stall_s, own, r.profile_steps)


def attached_width(request: LiveRequest) -> LiveRequest:
    """Fill in the draft tokens of a server that runs already. Raises InputError where it does not answer."""
    assert request.attach is not None
    try:
        info = Client(request.attach).server_info()
    except ServerError as error:
        raise InputError(f"no SGLang server answers at {request.attach}", error.message, "check the URL") from error
    width = info.get("speculative_num_draft_tokens") if info.get("speculative_algorithm") else None
    tp = info.get("tp_size")
    return request.model_copy(update={
        "draft_tokens": [int(width) if isinstance(width, int) and width > 0 else 1],
        "tp": request.tp or (tp if isinstance(tp, int) else None),
    })  # fmt: skip


def _check_speculation(info: dict[str, Any], plan: ServerPlan) -> None:
    """A server that runs with another width than asked for measures something else."""
    width = info.get("speculative_num_draft_tokens") if info.get("speculative_algorithm") else 1
    if isinstance(width, int) and width != plan.draft_tokens:
        raise ServerError(
            "wrong_version",
            f"the server runs with {width} draft tokens, not {plan.draft_tokens}: it read the flags in another way",
        )


def _with_cause(found: ArmRecord, server: Server | None) -> ArmRecord:
    """A request that failed because the server died says why it died."""
    if found.status == "ok" or server is None or server.process is None:
        return found
    code = server.wait_end()
    if code is None:
        return found
    kind, message = server.why_ended(code)
    return found.model_copy(
        update={
            "error": Trouble.model_validate({"kind": kind if kind in _ENDS_SERVER else "crash", "message": message})
        }
    )


def _links(request: LiveRequest) -> Any:
    from nccltune.store import Run

    name = request.topology or (Run.load(request.run_path).manifest.machine.topology if request.run_path else None)
    return registry.load_topology(name).links.kind if name else "pcie"


def _target(request: LiveRequest) -> Model:
    from nccltune.validation.architecture import architectures
    from nccltune.validation.predictor import Subject

    with architectures(Subject(request.model)) as resolved:
        return registry.load_model(resolved.model)


def _result(found: ArmRecord) -> str:
    if found.error is not None:
        return f"{found.error.kind}: {found.error.message}"
    assert found.time_ms is not None
    accept = f", accept length {found.accept_length:.2f}" if found.accept_length else ""
    return f"{found.time_ms.value:.2f} ms a {'step' if found.phase == 'decode' else 'cycle'}{accept} ({found.timing.split(' ', 1)[0]} clock)"


def _file_name(plan: ServerPlan) -> str:
    return re.sub(r"[^A-Za-z0-9._=-]+", "_", plan.id)[:120]


@contextlib.contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """A polite end of this process stops the server too, also where a shell started it with SIGINT ignored (``cmd &``)."""
    with _handlers(lambda *_: _interrupt()):
        yield


def _interrupt() -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    with _handlers(lambda *_: None):
        yield


@contextlib.contextmanager
def _handlers(handler: Callable[..., None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # ignored under nohup, and stays so
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
