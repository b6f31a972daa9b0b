"""Confirm what would be emitted: exactly that set against the base in fresh launches, and each variable on its own.

A scan measures many settings once and picks the fastest, which flatters the winner. Here the winner runs again, in
launches of its own taken in turn with the base, without it each variable is taken away once, and the other collectives
of an engine run under it.
"""

from typing import Any

from nccltune.bench import records
from nccltune.bench.group import RankFailure
from nccltune.bench.options import Outcome
from nccltune.bench.scan import Scan
from nccltune.bench.session import Communicator
from nccltune.knobs import decisions, library_part
from nccltune.schemas.measurement import Case, Choice, Measurement
from nccltune.schemas.setting import BASE, Setting

LAUNCHES = 3
OTHERS_BYTES = 65536


def ablations(setting: Setting) -> list[Setting]:
    """The setting without each of its variables in turn (a fixed channel count goes as one)."""
    units = decisions(setting.env)
    if len(units) < 2:
        return []
    return [Setting.make({k: v for k, v in setting.env.items() if k not in unit}) for unit in units]


class Confirm(Scan):
    """A walk over the base, one winner and its ablations; the plan must hold them all."""

    def __init__(self, *arguments: Any, best: Setting, exact_env: dict[str, str] | None = None, **options: Any) -> None:
        """``exact_env``: the winner as it is written into the file, where its lists are spelled another way."""
        super().__init__(*arguments, **options)
        self._best = best
        self._exact_env = best.env if exact_env is None else exact_env
        self.faults: dict[str, str] | None = None
        """Fault of each other collective under the winner; None when they could not be run."""
        self.num_launches = 0

    def _walk(self) -> Outcome:
        for number in range(LAUNCHES):
            for setting in (BASE, self._best) if number % 2 == 0 else (self._best, BASE):
                if self._must_end():
                    return self._outcome()
                self._launch(setting)
            self.num_launches += 1
        wanted = {setting.id for setting in ablations(self._best)}
        for library_env, members in self.plan.groups():
            for setting in members:
                if setting.id in wanted and self._pending(setting) and not self._must_end():
                    self._measure_setting(setting, library_env)
        return self._outcome()

    def _launch(self, setting: Setting) -> None:
        """Measure one setting in a communicator of its own; a failure is a record.

        The winner is opened exactly as it is written (``allreduce:ring``). It counts as a repetition of the setting that
        was scanned (``Ring``) where both resolve to the same choice, and is not credited where they do not.
        """
        env = self._exact_env if setting.id == self._best.id else setting.env
        library_env = library_part(env)
        comm, size = None, self.plan.size_bytes[0]
        self._repeats += 1
        try:
            if self.session.needs_restart(library_env):
                self.session.stop()
            comm = self.session.open({**self.plan.base_env, **env}, library_env, self.plan.size_bytes)
            comm.env = env
            for size in self.plan.size_bytes:
                self._record(self._repetition(setting, comm, size))
            if setting.id == self._best.id and self.faults is None:
                self.faults = self.session.others(comm, OTHERS_BYTES)
            self.session.close(comm)
        except RankFailure as failure:
            self._recover(failure, comm)
            case = self.plan.case(setting, size, self.plan.timings[0])
            self._record(records.failed(case, failure).model_copy(update=self._as_repeat(case)))

    def _repetition(self, setting: Setting, comm: Communicator, size: int) -> Measurement:
        case = self.plan.case(setting, size, self.plan.timings[0])
        choice, scanned = comm.resolution.choices.get(size), self._done.get(case.id)
        in_force, reason = comm.resolution.in_force(size, comm.env)
        if in_force is not False and scanned is not None and not _same(choice, scanned.choice):
            in_force, reason = False, "written for this NCCL it resolves to another choice than when it was scanned"
        if in_force is False:
            return records.not_in_force(case, reason, self._base_case(case)).model_copy(update=self._as_repeat(case))
        measurement = self._time(case, comm, choice, repeat=self._repeats)
        return measurement.model_copy(update={**self._as_repeat(case), "choice": choice, "in_force": in_force})

    def _as_repeat(self, case: Case) -> dict[str, Any]:
        return {"case_id": f"{case.id}-r{self._repeats}", "repeat": self._repeats}


def _same(a: Choice | None, b: Choice | None) -> bool:
    """Whether two choices are the same kernel launch, as far as both are known."""
    if a is None or b is None:
        return True
    pairs = ((a.algo, b.algo), (a.proto, b.proto), (a.num_channels, b.num_channels), (a.num_threads, b.num_threads))
    return all(x is None or y is None or x == y for x, y in pairs)
