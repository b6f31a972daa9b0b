"""Communicators of a walk: open one under a setting, and what to do with the ranks when something failed."""

import contextlib
from collections.abc import Callable
from typing import Any

from nccltune.bench import conditions
from nccltune.bench.effective import Resolution
from nccltune.bench.group import RankFailure
from nccltune.bench.session import Communicator, Session
from nccltune.plan import Plan
from nccltune.schemas.setting import BASE, Setting
from nccltune.store import Run


class Opening:
    """Opens the communicators of a plan; ``tell(kind, text)`` is an event of the walk."""

    def __init__(self, run: Run, plan: Plan, session: Session, tell: Callable[[Any, str], None]) -> None:
        self.run, self.plan, self.session, self._tell = run, plan, session, tell

    def open(self, setting: Setting, library_env: dict[str, str]) -> Communicator:
        """Open a communicator under the base and a setting; raises RankFailure."""
        if self.session.needs_restart(library_env):
            self._tell("restart", "new processes: torch loads one libnccl, which reads these variables once")
            self.session.stop()
        env = {**self.plan.base_env, **setting.env}
        comm = self.session.open(env, library_env, self.plan.size_bytes)
        comm.env = setting.env
        if setting.id == BASE.id:
            self._note_base(comm.resolution)
        return comm

    def open_quiet(self, setting: Setting, library_env: dict[str, str], loud: Communicator) -> Communicator:
        """A communicator that does not log, for eager timing; what it does is known from the one that logs."""
        env = {**self.plan.base_env, **setting.env}
        comm = self.session.open(env, library_env, [], quiet=True)
        comm.env, comm.resolution = setting.env, loud.resolution
        return comm

    def recover(self, failure: RankFailure, *comms: Communicator | None) -> None:
        """After a failure: keep the ranks when they all answered, otherwise start new ones at the next use.

        ``comms``: every communicator that may be open still. Ranks that are kept leave them all.
        """
        # Only NCCL can leave a communicator one-sidedly; the process group of torch.distributed ends with its processes.
        if failure.group_alive and self.plan.backend == "nccl":
            with contextlib.suppress(RankFailure):
                for comm in comms:
                    if comm is not None:
                        self.session.close(comm, abort=True)
                return
        self.session.forget()

    def _note_base(self, resolution: Resolution) -> None:
        """What did not take effect of the base is no setting's fault: the run says it, once."""
        found = [f"base: {fault}" for fault in resolution.faults(self.plan.base_env)]
        for note in conditions.keep_notes(self.run, found):
            self._tell("note", note)
