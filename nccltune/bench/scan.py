"""The walk over a plan: every case becomes a record, whatever happens to the ranks; what is done is on disk.

Order: settings that share a library copy together, copies shuffled; the base first and again and again (drift). A
failure costs the case in flight, never the scan.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from nccltune.bench import conditions, records
from nccltune.bench.beside_walk import BesideWalk
from nccltune.bench.drift import Drift, drift
from nccltune.bench.effective import effective_key
from nccltune.bench.group import RankFailure
from nccltune.bench.opening import Opening
from nccltune.bench.options import Event, Outcome, ScanOptions
from nccltune.bench.session import Communicator, Session
from nccltune.bench.stopping import StopSignals
from nccltune.bench.timing import time_case
from nccltune.knobs import library_part
from nccltune.methods import NCCL
from nccltune.plan import Plan
from nccltune.schemas.machine import GpuRecord
from nccltune.schemas.measurement import Case, Choice, Measurement
from nccltune.schemas.setting import BASE, Setting
from nccltune.store import Run

# A setting that fails so often is given up: every further failure would cost a restart of the ranks.
MAX_FAILURES_PER_SETTING = 2


class Scan:
    """One walk over a plan, writing to a run."""

    def __init__(
        self,
        run: Run,
        plan: Plan,
        session: Session,
        options: ScanOptions,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self.run, self.plan, self.session, self.options = run, plan, session, options
        self._on_event = on_event or (lambda _: None)
        self._started = time.monotonic()
        self._stop = StopSignals(lambda: self._emit("note", "stopping after this case; once more stops at once"))
        self._opening = Opening(run, plan, session, self._emit)
        self._recover = self._opening.recover
        self._sizes = plan.size_bytes
        self.drifts: list[Drift] = []
        self._shared: dict[tuple[Any, ...], Measurement] = {}
        self._base_cases: dict[tuple[int, str], Measurement] = {}
        finished = {"error", "timeout"} if options.retry_failed else set()
        held = run.all_measurements()
        self._done = {m.case_id: m for m in held if m.status not in finished}
        self._num_done = sum(1 for m in self._done.values() if not m.repeat and m.method == NCCL)
        # Behind the highest of all that the run holds: a count would give out numbers again after one was used without a
        # record, or where failed cases are not counted, and a later record would replace an old one.
        self._order = max((m.order for m in held), default=-1) + 1
        self._repeats = max((m.repeat for m in held), default=0)
        self._monitored = self._order  # position of the last look at the drift
        for measurement in self._done.values():
            self._remember(measurement)

    def walk(self) -> Outcome:
        """Measure everything that the run does not hold yet. Always leaves the ranks stopped."""
        with self._stop:
            try:
                before, first_order = conditions.state(self.session.devices), self._order
                outcome = self._walk()
                if outcome == "complete" and self.options.beside:
                    self._walk_beside()
                    outcome = self._outcome()
                self._note_conditions(before, first_order)
                return outcome
            except KeyboardInterrupt:
                self.session.forget()  # at once: ranks inside a collective would not hear a polite end
                raise
            finally:
                self._stop.shield()
                self.session.cleanup()

    def _walk(self) -> Outcome:
        for number, (library_env, setting) in enumerate(self._settings()):
            if self._must_end():
                break
            if number and number % self.options.monitor_every == 0:
                self._monitor()
            self._measure_setting(setting, library_env)
        if not self._must_end() and self.session.is_running:
            self._monitor()
        return self._outcome()

    def _walk_beside(self) -> None:
        BesideWalk(
            self.plan, self.session, self.options, done=self._done, record=self._record, must_end=self._must_end,
            note=lambda text: self._emit("note", text), recover=self._recover,
        ).walk()  # fmt: skip

    def _outcome(self) -> Outcome:
        if self._stop.requested:
            return "interrupted"
        return "time_limit" if self._over_budget() and self._missing() else "complete"

    def _missing(self) -> bool:
        """Whether the plan has a case that the run does not hold (a search looks at some of its sizes at a time)."""
        return any(case.id not in self._done for case in self.plan.cases())

    def _note_conditions(self, before: list[GpuRecord], first_order: int) -> None:
        """Keep in the manifest what the machine was like, while the ranks are still warm."""
        after, options = conditions.state(self.session.devices), self.run.manifest.options
        spans = [*options.get("walks", []), conditions.span(before, after, first_order, self._order)]
        self.run.update(options={**options, "walks": spans})
        conditions.keep_notes(self.run, conditions.notes(before, after, self.drifts))

    def _must_end(self) -> bool:
        return self._stop.requested or self._over_budget()

    def _settings(self, wanted: Iterable[Setting] | None = None) -> Iterator[tuple[dict[str, str], Setting]]:
        """Settings (all, or those ``wanted``) that lack a case when their turn comes, those of one library copy together."""
        ids = None if wanted is None else {setting.id for setting in wanted}
        for library_env, settings in self.plan.groups():
            for setting in settings:
                if (ids is None or setting.id in ids) and self._pending(setting):
                    yield library_env, setting

    def _cases(self, setting: Setting) -> list[Case]:
        return [self.plan.case(setting, size, timing) for timing in self.plan.timings for size in self._sizes]

    def _pending(self, setting: Setting) -> list[Case]:
        return [case for case in self._cases(setting) if case.id not in self._done]

    def _measure_setting(self, setting: Setting, library_env: dict[str, str]) -> None:
        """Walk the cases of one setting, reopening its communicator after a failure until it has failed too often."""
        self._emit("setting", setting.name)
        pending = self._pending(setting)
        if self.plan.backend == "gloo" and setting.id != BASE.id:
            for case in pending:
                self._record(records.not_in_force(case, "gloo does not read NCCL variables", self._base_case(case)))
            return
        failures = 0
        while pending and not self._must_end():
            comm = quiet = None
            try:
                comm = self._opening.open(setting, library_env)
                loud = [c for c in pending if c.timing != "eager" or self.plan.backend != "nccl"]
                self._measure_cases(loud, comm, pending)
                if pending and not self._must_end():
                    quiet = self._opening.open_quiet(setting, library_env, comm)
                    self._measure_cases(list(pending), quiet, pending)
                    self.session.close(quiet)
                    quiet = None
                self.session.close(comm)
            except RankFailure as failure:
                failures += 1
                self._recover(failure, quiet, comm)
                if not pending:
                    self._emit("note", f"{setting.name} is measured, but leaving it failed: {failure.message}")
                elif failures >= MAX_FAILURES_PER_SETTING or (comm is None and setting.id != BASE.id):
                    # It failed at init, or again and again: the same would happen to every size.
                    while pending:
                        self._record(records.failed(pending.pop(0), failure))
                elif comm is not None:
                    self._record(records.failed(pending.pop(0), failure))

    def _measure_cases(self, cases: list[Case], comm: Communicator, pending: list[Case]) -> None:
        """Measure ``cases`` in order, taking each off ``pending`` when it is recorded."""
        for case in cases:
            if self._must_end():
                return
            pending.sort(key=lambda other: other != case)  # the case in flight is first: a failure is its failure
            self._measure_case(case, comm)
            pending.remove(case)

    def _measure_case(self, case: Case, comm: Communicator) -> None:
        began = time.monotonic()
        resolution, size = comm.resolution, case.size_bytes
        if size in resolution.errors:
            self._record(records.unresolved(case, resolution.errors[size]))
            return
        in_force, reason = resolution.in_force(size, case.setting.env)
        choice = resolution.choices.get(size)
        facts = {
            "choice": choice,
            "in_force": in_force,
            "rejected": resolution.of(case.setting.env),
            "nccl_model_us": resolution.model_us.get(size),
        }
        if in_force is False:
            self._record(records.not_in_force(case, reason, self._base_case(case)).model_copy(update=facts))
            return
        key = effective_key({**self.plan.base_env, **case.setting.env}, choice, size, case.timing)
        shared = self._shared.get(key) if key is not None and self.options.dedup else None
        if shared is not None:
            self._record(records.shared(case, shared).model_copy(update=facts))
            return
        measurement = self._time(case, comm, choice).model_copy(
            update={**facts, "seconds": round(time.monotonic() - began, 4)}
        )
        self._remember(measurement)
        self._record(measurement)

    def _remember(self, measurement: Measurement) -> None:
        """Keep what later cases may share: a choice's measurement, and the base's cases."""
        if measurement.repeat or measurement.same_as is not None or measurement.method != NCCL:
            return
        if measurement.setting.id == BASE.id:
            self._base_cases[measurement.size_bytes, measurement.timing] = measurement
        env = {**self.plan.base_env, **measurement.setting.env}
        key = effective_key(env, measurement.choice, measurement.size_bytes, measurement.timing)
        if key is not None and measurement.status == "ok":
            self._shared[key] = measurement

    def _time(self, case: Case, comm: Communicator, choice: Choice | None, repeat: int = 0) -> Measurement:
        measurement = time_case(self.session, comm, case, choice, self.options, 1000 * repeat + self._order)
        return measurement.model_copy(update={"repeat": repeat})

    def _monitor(self) -> None:
        """Measure the base once more at its smallest, middle and largest size: the run's own record of drift."""
        timing, ends = (
            self.plan.timings[0],
            sorted({self.plan.size_bytes[i] for i in (0, len(self.plan.size_bytes) // 2, -1)}),
        )
        sizes = [s for s in ends if (m := self._base_cases.get((s, timing))) is not None and m.status == "ok"]
        # torch: its one process group would have to be made anew, with new processes.
        if self.plan.backend == "torch" or not sizes:
            return
        since, self._monitored = self._monitored, self._order
        comm: Communicator | None = None
        try:
            # A launch of its own each time: the spread from launch to launch is part of every number of a scan.
            comm = self._opening.open(BASE, library_part({}))
            for size in sizes:
                self._repeats += 1
                case = self.plan.case(BASE, size, timing)
                measurement = self._time(case, comm, comm.resolution.choices.get(size), repeat=self._repeats)
                measurement = measurement.model_copy(update={"choice": comm.resolution.choices.get(size)})
                self._record_repeat(case, measurement, since)
            self.session.close(comm)
        except RankFailure as failure:
            self._emit("note", f"the drift monitor failed: {failure.message}")
            self._recover(failure, comm)

    def _base_case(self, case: Case) -> Measurement | None:
        return self._base_cases.get((case.size_bytes, case.timing))

    def _record(self, measurement: Measurement) -> None:
        measurement = measurement.model_copy(update={"order": self._order})
        self._order += 1
        self.run.append([measurement])
        self._done[measurement.case_id] = measurement
        if not measurement.repeat and measurement.method == NCCL:
            self._num_done += 1
        self._emit("case", f"{measurement.setting.name}, {measurement.size_bytes} B", measurement)

    def _record_repeat(self, case: Case, measurement: Measurement, since: int) -> None:
        """Record a repetition of the base, and flag the window before it when the base has moved."""
        first = self._base_case(case)
        measurement = measurement.model_copy(update={"case_id": f"{case.id}-r{self._repeats}", "order": self._order})
        if first is not None and first.samples_us and measurement.samples_us:
            moved = replace(drift(first, measurement), since=since)
            if moved.flagged:
                measurement = measurement.model_copy(update={"warnings": [*measurement.warnings, moved.text()]})
                self.drifts.append(moved)
                self._emit("note", f"drift: {moved.text()}")
        self._record(measurement)

    def _emit(self, kind: Any, text: str, measurement: Measurement | None = None) -> None:
        self._on_event(
            Event(kind, text, self._num_done, self.plan.num_cases, time.monotonic() - self._started, measurement)
        )

    def _over_budget(self) -> bool:
        limit = self.options.time_budget_s
        return limit is not None and time.monotonic() - self._started > limit
