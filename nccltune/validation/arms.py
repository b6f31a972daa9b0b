"""From a request to servers and arms: one server per (setting, draft tokens), all batch sizes inside it, baseline included."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from nccltune.emit import sglang_args
from nccltune.emit.document import Document
from nccltune.emit.emission import emit
from nccltune.errors import InputError
from nccltune.knobs import find_setting
from nccltune.schemas.fit import Fit
from nccltune.schemas.limits import check_counts
from nccltune.schemas.setting import BASE, Setting
from nccltune.store import Run
from nccltune.validation.measure import ArmPlan
from nccltune.validation.request import LiveRequest

ASSUMED_START_S = 90.0
"""Until a server of this session has told: 50 to 80 s were seen for 61 GB of dummy weights on 2x H200."""
_MAX_ARMS = 1000
_NCCL_FLAGS = ("--disable-custom-all-reduce", "--enforce-disable-flashinfer-allreduce-fusion")
_OURS = (
    "--host",
    "--port",
    "--model-path",
    "--tp-size",
    "--tp",
    sglang_args.STEPS,
    sglang_args.TOPK,
    sglang_args.DRAFT,
    sglang_args.ALGORITHM,
)


@dataclass(frozen=True)
class ServerPlan:
    """One server: its setting, width, NCCL variables and batch sizes."""

    setting: Setting
    draft_tokens: int
    nccl_env: dict[str, str]
    batches: tuple[int, ...]

    @property
    def id(self) -> str:
        """Stable name; also that of the log, with what a file name cannot hold replaced."""
        return f"{self.setting.id} | D={self.draft_tokens}"

    @property
    def arms(self) -> list[ArmPlan]:
        """One arm per batch size."""
        return [ArmPlan(self.setting, self.draft_tokens, batch) for batch in self.batches]


def plan_servers(request: LiveRequest) -> list[ServerPlan]:
    """Return the servers in order, plain decode under the base first. Raises InputError for what cannot be started."""
    check(request)
    fit = _fit(request)
    batches = tuple(dict.fromkeys(request.batch))
    if request.attach:
        setting, env = _setting(request.settings[0] if request.settings else "base", request, fit)
        return _affordable([ServerPlan(setting, width, env, batches) for width in request.draft_tokens[:1]])
    found: dict[str, ServerPlan] = {}
    for name in dict.fromkeys(["base", *request.settings]):
        setting, env = _setting(name, request, fit)
        # The base is the baseline: its plain decode is always there, its other widths only where base was asked for.
        wanted = request.draft_tokens if name in request.settings else []
        for width in sorted({*wanted, *([1] if name == "base" else [])}):
            plan = ServerPlan(setting, width, env, batches)
            found.setdefault(plan.id, plan)
    return _affordable(list(found.values()))


def _affordable(plans: list[ServerPlan]) -> list[ServerPlan]:
    """The same servers, unless nobody can mean so many arms."""
    num_arms = sum(len(plan.batches) for plan in plans)
    if num_arms > _MAX_ARMS:
        raise InputError(f"{num_arms} arms are more than {_MAX_ARMS}", "each is measured on a real server, for minutes", "name fewer batch sizes, draft tokens or settings")  # fmt: skip
    return plans


def check(request: LiveRequest) -> None:
    """Raise InputError for what no server could be started with."""
    if not request.attach and not request.model_path:
        raise InputError("no server can be started", "no --model-path", "give the model's folder, or --attach URL")
    if max(request.draft_tokens, default=1) > 1 and not request.draft_model_path and not request.attach:
        raise InputError("drafted arms need a drafter", "no --draft-model-path", "give the drafter's folder, or --draft-tokens 1")  # fmt: skip
    check_counts(request.draft_tokens, request.batch)
    taken = [w.split("=", 1)[0] for w in _words(request.extra_args, "--extra-args")]
    for flag in _OURS:
        if flag in taken:
            raise InputError(f"--extra-args holds {flag}", "it is set for every server by this command", "use this command's own option")  # fmt: skip
    for name in request.env:
        if name.startswith("NCCL_"):
            raise InputError(f"--env {name}", "NCCL variables are those of the settings", "give it as a setting: --settings 'NCCL_X=a;NCCL_Y=b'")  # fmt: skip


def ranks_of(request: LiveRequest) -> int:
    """Tensor-parallel size: as given, or that of the run."""
    if request.tp is not None:
        return request.tp
    if request.run_path is None:
        raise InputError("the tensor-parallel size is not known", "there is no run to take it from", "give --tp N")
    return Run.load(request.run_path).manifest.num_ranks


def command_of(request: LiveRequest, plan: ServerPlan, port: int) -> list[str]:
    """Return the server's argv; --extra-args come last, so that they win."""
    batches = sorted(plan.batches)
    argv = [
        *_words(request.launch, "--launch"), "--model-path", request.model_path, "--tp-size", str(ranks_of(request)),
        "--host", "127.0.0.1", "--port", str(port),
        # Exactly the measured batches are captured and no more can run, so that no batch is padded to another size.
        "--cuda-graph-bs-decode", *map(str, batches), "--max-running-requests", str(batches[-1]),
        "--disable-radix-cache", "--enable-metrics", "--decode-log-interval", "10", "--random-seed", "1", "--skip-server-warmup",
    ]  # fmt: skip
    if request.load_format:
        argv += ["--load-format", request.load_format]
    if request.nccl_all_reduce:
        argv += _NCCL_FLAGS
    speculation = sglang_args.speculation(plan.draft_tokens, None, 1, None)
    if speculation is not None:
        argv += [word for line in sglang_args.flags(Document(speculation=speculation)) for word in line.split()]
        argv += ["--speculative-draft-model-path", str(request.draft_model_path)]
        if request.load_format:
            argv += ["--speculative-draft-load-format", request.load_format]
    return [*argv, *_words(request.extra_args, "--extra-args")]


def environment_of(request: LiveRequest, plan: ServerPlan) -> tuple[dict[str, str], list[str]]:
    """Return the whole environment of a server, and the NCCL variables that it does not inherit."""
    dropped = sorted(name for name in os.environ if name.startswith("NCCL_"))
    env = {k: v for k, v in os.environ.items() if k not in dropped}
    env |= {"PYTHONUNBUFFERED": "1", "SGLANG_RECORD_STEP_TIME": "1", **request.env, **plan.nccl_env}
    if request.simulate_accept_length is not None and plan.draft_tokens > 1:
        # SGLang clamps it to what a verify can accept; the record should say what was in force.
        env["SGLANG_SIMULATE_ACC_LEN"] = f"{min(request.simulate_accept_length, plan.draft_tokens):g}"
    return env, dropped


def recorded_env(env: Mapping[str, str]) -> dict[str, str]:
    """The variables worth keeping: no secrets, no paths of the machine."""
    return {k: v for k, v in sorted(env.items()) if k.startswith(("NCCL_", "SGLANG_")) and not v.startswith("/")}


def _fit(request: LiveRequest) -> Fit | None:
    if request.run_path is None:
        return None
    fit = Run.load(request.run_path).load_fit()
    if fit is None:
        raise InputError(f"run {request.run} has no fit yet", "", f"run: nccltune fit {request.run}")
    return fit


def _setting(name: str, request: LiveRequest, fit: Fit | None) -> tuple[Setting, dict[str, str]]:
    """Return a setting and the variables that ``emit`` writes for it (``best``: the minimal set, as users export it)."""
    known = {s.setting.name: s.setting for s in fit.settings} if fit else {}
    if name == "best":
        if fit is None:
            raise InputError("no run to take the best setting from", "--settings names 'best'", "give --run, or name the settings")  # fmt: skip
        setting = known[fit.best] if fit.best else BASE
    else:
        setting = find_setting(name, known)
    document = emit(
        request.run_path, format="json", setting=setting.name if setting.name in known or not setting.env else setting.id,
        full=name != "best", force=True,
    ).document  # fmt: skip
    return setting, document.env


def _words(text: str, flag: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InputError(f"{flag} cannot be read", str(error), "close the quote") from error
