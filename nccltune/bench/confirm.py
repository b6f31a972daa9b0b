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
from nccltune.units import format_size

LAUNCHES = 3
OTHERS_BYTES = 65536
OTHER_COLLECTIVES = "another collective (all-gather, reduce-scatter or broadcast)"
"""Name of the fault where the ranks could not say which one it was: they hung or died."""


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
        self._is_finished = False
        self.faults: dict[str, str] | None = None
        """Fault of each other collective under the winner; None when they were not run."""
        self.num_launches = 0
        """Pairs of launches, winner and base, in which every size gave a time."""
        self.problem = ""
        """Why a launch of the winner gave none, the first one."""

    def _walk(self) -> Outcome:
        self._measure_once([self._best])
        for number in range(LAUNCHES):
            pair = (BASE, self._best) if number % 2 == 0 else (self._best, BASE)
            good = [self._launch(setting) for setting in pair if not self._must_end()]
            self.num_launches += len(good) == len(pair) and all(good)
        self._measure_once(ablations(self._best))
        self._is_finished = not self._must_end()
        return self._outcome()

    def _outcome(self) -> Outcome:
        if self._stop.requested:
            return "interrupted"
        return "complete" if self._is_finished else "time_limit"

    def _pending(self, setting: Setting) -> list[Case]:
        """Also what a race left out: here it is wanted."""
        return [c for c in self._cases(setting) if (m := self._done.get(c.id)) is None or m.status == "skipped"]

    def _measure_once(self, settings: list[Setting]) -> None:
        """Measure what the scan itself does not hold of them."""
        for library_env, setting in self._settings(settings):
            if self._must_end():
                return
            self._measure_setting(setting, library_env)

    def _launch(self, setting: Setting) -> bool:
        """Measure one setting in a communicator of its own; a failure is a record. Whether every size gave a time.

        The winner is opened exactly as it is written (``allreduce:ring``). It counts as a repetition of the setting that
        was scanned (``Ring``) where both resolve to the same choice, and is not credited where they do not.
        """
        is_best = setting.id == self._best.id
        env = self._exact_env if is_best else setting.env
        library_env = library_part(env)
        comm, case, problem = None, self._case(setting, self.plan.size_bytes[0]), ""
        self._repeats += 1
        try:
            if self.session.needs_restart(library_env):
                self.session.stop()
            comm = self.session.open({**self.plan.base_env, **env}, library_env, self.plan.size_bytes)
            comm.env = env
            for size in self.plan.size_bytes:
                case = self._case(setting, size)
                measurement = self._repetition(case, comm)
                self._record(measurement)
                problem = problem or _problem(measurement)
        except RankFailure as failure:
            self._recover(failure, comm)
            lost = records.failed(case, failure).model_copy(update=self._as_repeat(case))
            self._record(lost)
            problem = problem or _problem(lost)
        else:
            self._leave(comm, run_others=is_best and self.faults is None)
        if is_best:
            self.problem = self.problem or problem
        return not problem

    def _leave(self, comm: Communicator, *, run_others: bool) -> None:
        """Run the other collectives once, and close; what fails here is no measurement's failure."""
        try:
            if run_others:
                self.faults = self.session.others(comm, OTHERS_BYTES)
                run_others = False
            self.session.close(comm)
        except RankFailure as failure:
            if run_others:
                self.faults = {OTHER_COLLECTIVES: f"{failure.kind}: {failure.message}"}
            self._emit("note", f"leaving a launch of the confirmation failed: {failure.message}")
            self._recover(failure, comm)

    def _case(self, setting: Setting, size_bytes: int) -> Case:
        return self.plan.case(setting, size_bytes, self.plan.timings[0])

    def _repetition(self, case: Case, comm: Communicator) -> Measurement:
        size = case.size_bytes
        choice, scanned = comm.resolution.choices.get(size), self._done.get(case.id)
        if size in comm.resolution.errors:
            return records.unresolved(case, comm.resolution.errors[size]).model_copy(update=self._as_repeat(case))
        in_force, reason = comm.resolution.in_force(size, comm.env)
        if in_force is not False and scanned is not None and not _same(choice, scanned.choice):
            in_force, reason = False, "written for this NCCL it resolves to another choice than when it was scanned"
        if in_force is False:
            return records.not_in_force(case, reason, self._base_case(case)).model_copy(update=self._as_repeat(case))
        measurement = self._time(case, comm, choice, repeat=self._repeats)
        return measurement.model_copy(update={**self._as_repeat(case), "choice": choice, "in_force": in_force})

    def _as_repeat(self, case: Case) -> dict[str, Any]:
        return {"case_id": f"{case.id}-r{self._repeats}", "repeat": self._repeats}


def _problem(measurement: Measurement) -> str:
    """Why a measurement has no time; empty where it has."""
    if measurement.status == "ok":
        return ""
    said = [measurement.error.message] if measurement.error is not None else measurement.warnings
    return ": ".join([f"{measurement.status} at {format_size(measurement.size_bytes)}", *said[:1]])


def _same(a: Choice | None, b: Choice | None) -> bool:
    """Whether two choices are the same kernel launch, as far as both are known."""
    if a is None or b is None:
        return True
    pairs = ((a.algo, b.algo), (a.proto, b.proto), (a.num_channels, b.num_channels), (a.num_threads, b.num_threads))
    return all(x is None or y is None or x == y for x, y in pairs)
