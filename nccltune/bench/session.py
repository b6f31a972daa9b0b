"""One process group of ranks and its communicators: open under a setting, ask what it resolved to, measure, close."""

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nccltune.bench.copies import Copies, Library
from nccltune.bench.effective import Resolution, kernels_only, resolve
from nccltune.bench.group import RankFailure, RankGroup
from nccltune.bench.sampling import Samples, StopRule, sample
from nccltune.bench.workdir import Workdir
from nccltune.errors import MachineError
from nccltune.methods import Method

_START_TIMEOUT_S = 180.0
_START_ATTEMPTS = 2


@dataclass(frozen=True)
class SessionOptions:
    """What a session needs to know besides the plan."""

    backend: str
    num_ranks: int
    dtype: str
    max_bytes: int
    hidden_size: int
    libnccl: str = ""
    timeout_s: float = 60.0
    max_libraries: int = 4
    """Private copies of libnccl loaded at a time; each keeps about 0.1 GiB of GPU memory (docs/knobs.md)."""
    devices: tuple[int, ...] = ()
    """CUDA's numbers of the GPUs, one a rank; the first ones where left out."""


@dataclass
class Communicator:
    """An open communicator."""

    key: int
    library: Library
    env: dict[str, str]
    resolution: Resolution = field(default_factory=Resolution)


class UnavailableError(Exception):
    """A method beside NCCL is not to be had on this machine; the text is the reason."""


class Session:
    """Starts the ranks on first use; after a failure that killed them, the next use starts new ones."""

    def __init__(self, options: SessionOptions) -> None:
        self.options = options
        self._folder: Workdir | None = None
        self.facts: list[dict[str, Any]] = []
        self.nccl_version: str | None = None
        self.num_starts = 0
        self._group: RankGroup | None = None
        self._keys = itertools.count(1)
        self._copies = Copies(options.libnccl if options.backend == "nccl" else "", options.max_libraries, self._unload)

    @property
    def workdir(self) -> Path:
        """The working folder, made at first use."""
        if self._folder is None:
            self._folder = Workdir()
        return self._folder.path

    @property
    def group(self) -> RankGroup:
        """The running group, started when there is none."""
        if self._group is None:
            self._start()
        assert self._group is not None
        return self._group

    @property
    def devices(self) -> tuple[int, ...]:
        """GPUs in use, none for gloo."""
        if self.options.backend == "gloo":
            return ()
        return self.options.devices or tuple(range(self.options.num_ranks))

    @property
    def is_running(self) -> bool:
        """Whether the ranks run."""
        return self._group is not None

    def open(
        self, env: dict[str, str], library_env: dict[str, str], size_bytes: list[int], *, quiet: bool = False
    ) -> Communicator:
        """Open a communicator under ``env`` and read back what it does for each size.

        A ``quiet`` one does not log, so it tells nothing: for eager timing, where NCCL would print a line per call.
        """
        group = self.group
        library = self._copies.take({**library_env, **({"quiet": "1"} if quiet else {})}, self.workdir)
        comm = Communicator(next(self._keys), library, env)
        message: dict[str, Any] = {"comm": comm.key, "library": library.path, "env": env, "quiet": quiet}
        logs, timeout = self._logs(library), self.options.timeout_s
        if self.options.backend == "nccl":
            [answer] = group.call("unique_id", timeout, ranks=[0], per_rank=[logs[0]], **message)
            message["unique_id"] = answer["unique_id"]
        else:
            message["rendezvous"] = str(self.workdir / f"rendezvous-{comm.key}")
        with self._all_or_none(comm):
            answers = group.call("open", timeout, per_rank=logs, **message)
            self.nccl_version = answers[0].get("nccl_version") or self.nccl_version
            if not quiet:
                comm.resolution = self._resolve(comm, size_bytes)
        return comm

    def open_beside(self, method: Method, base_env: dict[str, str], size_bytes: list[int]) -> Communicator:
        """Open another all-reduce than NCCL's tuned one; raises UnavailableError where this machine has none.

        Its communicator is checked, timed and closed as any other.
        """
        group = self.group
        library = (
            self._copies.take({"beside": method.name}, self.workdir)
            if method.env
            else Library("", str(self.workdir / "beside-r%d.log"))
        )
        comm = Communicator(next(self._keys), library, dict(method.env))
        message: dict[str, Any] = {
            "comm": comm.key, "method": method.name, "library": library.path, "env": {**base_env, **method.env}, "quiet": True,
            "devices": list(self.devices), "rendezvous": str(self.workdir / f"beside-{self.num_starts}"),
        }  # fmt: skip
        logs = self._logs(library)
        _raise_reason(group.call("probe_beside", _START_TIMEOUT_S, per_rank=logs, **message))
        if library.path:
            [answer] = group.call("unique_id", self.options.timeout_s, ranks=[0], per_rank=[logs[0]], **message)
            message["unique_id"] = answer["unique_id"]
        with self._all_or_none(comm):
            _raise_reason(group.call("open_beside", _START_TIMEOUT_S, per_rank=logs, **message))
            [answer, *_] = group.call("resolve", self.options.timeout_s, comm=comm.key, size_bytes=size_bytes)
            comm.resolution = kernels_only(answer["choices"])
        return comm

    def check(self, comm: Communicator, size_bytes: int, seeds: list[int]) -> tuple[int, int]:
        """Wrong elements over all ranks, and elements checked on each."""
        answers = self.group.call("check", self.options.timeout_s, comm=comm.key, size_bytes=size_bytes, seeds=seeds)
        return sum(answer["num_wrong"] for answer in answers), answers[0]["num_checked"]

    def measure(
        self, comm: Communicator, size_bytes: int, timing: str, num_per_replay: int, weight_bytes: int, rule: StopRule
    ) -> Samples:
        """Time one case."""
        self.group.call(
            "begin", self.options.timeout_s, comm=comm.key, size_bytes=size_bytes, timing=timing,
            num_per_replay=num_per_replay, weight_bytes=weight_bytes,
        )  # fmt: skip
        return sample(self.group, num_per_replay, rule, self.options.timeout_s)

    def others(self, comm: Communicator, size_bytes: int) -> dict[str, str]:
        """Fault of each other collective on any rank, empty when it is right everywhere."""
        answers = self.group.call("others", self.options.timeout_s, comm=comm.key, size_bytes=size_bytes)
        return {
            name: next((a["faults"][name] for a in answers if a["faults"][name]), "") for name in answers[0]["faults"]
        }

    def close(self, comm: Communicator, *, abort: bool = False) -> None:
        """Close a communicator; nothing to do when its group is gone. ``abort`` does not wait for the other ranks."""
        if self._group is not None:
            self._group.call("close", self.options.timeout_s, comm=comm.key, abort=abort)
            comm.library.num_open -= 1

    def stop(self) -> None:
        """End the ranks."""
        if self._group is not None:
            self._group.close()
        self.forget()

    def forget(self) -> None:
        """The ranks are gone (killed): their library copies with them."""
        if self._group is not None:
            self._group.kill()
        self._group = None
        self._copies.forget()

    def needs_restart(self, library_env: dict[str, str]) -> bool:
        """Whether a setting with these library-scope variables needs new processes first (torch: one copy for ever)."""
        is_torch = self.options.backend == "torch"
        return is_torch and self._group is not None and self._copies.only_others(library_env)

    def cleanup(self) -> None:
        """Stop the ranks and remove the working folder."""
        self.stop()
        if self._folder is not None:
            self._folder.remove()
            self._folder = None

    @contextlib.contextmanager
    def _all_or_none(self, comm: Communicator) -> Iterator[None]:
        """While a communicator is opened: where that fails on one rank, the ranks that did open it leave it again."""
        comm.library.num_open += 1
        try:
            yield
        except UnavailableError:
            self._abandon(comm)
            raise
        except RankFailure as failure:
            if failure.group_alive:
                self._abandon(comm)
            raise

    def _abandon(self, comm: Communicator) -> None:
        """Leave a communicator that not all ranks may have; ranks that cannot are ended."""
        try:
            self.close(comm, abort=True)
        except RankFailure:
            self.forget()

    def _start(self) -> None:
        """Start the ranks; raises MachineError when they do not come up, because no case could be measured then."""
        for attempt in range(_START_ATTEMPTS):
            try:
                self._start_group()
                return
            except RankFailure as failure:
                self.forget()
                if attempt == _START_ATTEMPTS - 1:
                    raise MachineError(
                        f"the {self.options.num_ranks} ranks do not start",
                        failure.message,
                        "see that torch is installed, and that the GPUs and their memory are free",
                    ) from failure

    def _start_group(self) -> None:
        options = self.options
        devices = self.devices or tuple(range(options.num_ranks))
        self._group = RankGroup(options.num_ranks, self.workdir)
        self.num_starts += 1
        self.facts = self._group.call(
            "start", _START_TIMEOUT_S, per_rank=[{"device": device} for device in devices], backend=options.backend,
            num_ranks=options.num_ranks, dtype=options.dtype, max_bytes=options.max_bytes, hidden_size=options.hidden_size,
        )  # fmt: skip

    def _unload(self, path: str) -> None:
        """Take a copy of libnccl out of every rank; raises RankFailure."""
        try:
            self.group.call("unload", self.options.timeout_s, library=path)
        except RankFailure:
            self.forget()  # a rank may hold it still, with its caches: only new processes certainly do not
            raise

    def _logs(self, library: Library) -> list[dict[str, str]]:
        """Where each rank's copy of NCCL logs."""
        return [{"log": library.log % rank} for rank in range(self.options.num_ranks)]

    def _resolve(self, comm: Communicator, size_bytes: list[int]) -> Resolution:
        answers = self.group.call("resolve", self.options.timeout_s, comm=comm.key, size_bytes=size_bytes)
        if self.options.backend == "gloo":
            return Resolution(can_tell=False)
        log = comm.library.read(answers[0]["log"])
        return resolve(comm.env, log, comm.library.echoed, answers[0]["choices"])


def _raise_reason(answers: list[dict[str, Any]]) -> None:
    reason = next((answer["reason"] for answer in answers if answer["reason"]), "")
    if reason:
        raise UnavailableError(reason)
