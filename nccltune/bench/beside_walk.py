"""The walk beside NCCL: after its settings, what an engine could use instead, at the same sizes and timings.

Each method's cases become records of the same run, with ``method`` set. One that is not to be had here is recorded with
the reason; one that fails is a record too. Nothing here ends a scan.
"""

import time
from collections.abc import Callable, Container

from nccltune.bench import records
from nccltune.bench.group import RankFailure, classify
from nccltune.bench.options import ScanOptions
from nccltune.bench.session import Communicator, Session, UnavailableError
from nccltune.bench.timing import CHECK_SEEDS, time_case
from nccltune.errors import NccltuneError
from nccltune.methods import METHODS, Method, peer_access_off
from nccltune.plan import Plan
from nccltune.schemas.measurement import Case, Measurement
from nccltune.schemas.setting import Setting

# Each further failure would cost a restart of the ranks.
MAX_FAILURES_PER_METHOD = 2
_REFUSED = "Refused: "
# A registered window only allows NCCL its symmetric kernels (ncclSymk... in a graph); for some sizes it takes others.
_WINDOWS, _SYMMETRIC = "nccl-windows", "ncclSym"


class BesideWalk:
    """One pass over the methods, telling a scan what came out."""

    def __init__(
        self,
        plan: Plan,
        session: Session,
        options: ScanOptions,
        *,
        done: Container[str],
        record: Callable[[Measurement], None],
        must_end: Callable[[], bool],
        note: Callable[[str], None],
        recover: Callable[[RankFailure, Communicator | None], None],
    ) -> None:
        self.plan, self.session, self.options = plan, session, options
        self._done, self._record, self._must_end, self._note, self._recover = done, record, must_end, note, recover
        self._next_seed = 0

    def walk(self) -> None:
        """Measure every method that the run does not hold yet."""
        for method in METHODS:
            pending = [case for case in _cases(self.plan, method) if case.id not in self._done]
            if not pending:
                continue
            if self._must_end():
                self._note(f"beside NCCL: {method.label} is left out, the scan ended before")
                return
            reason = peer_access_off(self.plan.base_env)
            if reason:
                self._give_up(method, pending, _unavailable(reason))
            else:
                self._measure(method, pending)

    def _measure(self, method: Method, pending: list[Case]) -> None:
        """Walk the cases of one method, opening it again after a failure until it has failed too often."""
        failures = 0
        while pending and not self._must_end():
            comm = None
            try:
                comm = self._open(method)
                while pending and not self._must_end():
                    self._record(self._measure_case(pending[0], comm))
                    pending.pop(0)
                self.session.close(comm)
            except UnavailableError as error:
                self._give_up(method, pending, _unavailable(str(error)))
            except RankFailure as failure:
                failures += 1
                self._recover(failure, comm)
                if comm is None:  # the ranks may be at different places of an opening that they do together
                    self.session.forget()
                if comm is None or failures >= MAX_FAILURES_PER_METHOD:
                    self._give_up(method, pending, failure)
                elif pending:
                    self._record(records.failed(pending.pop(0), failure))

    def _open(self, method: Method) -> Communicator:
        """Open a method; ranks that do not start, or no room for a copy of libnccl, are failures like any other."""
        try:
            return self.session.open_beside(method, self.plan.base_env, self.plan.size_bytes)
        except NccltuneError as error:
            raise RankFailure("other", str(error), None, group_alive=False) from error

    def _measure_case(self, case: Case, comm: Communicator) -> Measurement:
        began, size = time.monotonic(), case.size_bytes
        error = comm.resolution.errors.get(size)
        if error is not None:
            refused = error.startswith(_REFUSED)
            text = error.removeprefix(_REFUSED)
            return records.failed(
                case, _unavailable(text) if refused else RankFailure(classify(text, "other"), text, 0, group_alive=True)
            )
        choice = comm.resolution.choices.get(size)
        # Seeds of its own: a buffer that still holds the sums of the case before must not pass.
        self._next_seed += CHECK_SEEDS
        measurement = time_case(self.session, comm, case, choice, self.options, self._next_seed)
        kernel = (choice.kernel if choice is not None else None) or ""
        plain = (
            [f"NCCL used {kernel}, no symmetric kernel"] if case.method == _WINDOWS and _SYMMETRIC not in kernel else []
        )
        return measurement.model_copy(
            update={
                "choice": choice, "in_force": True, "seconds": round(time.monotonic() - began, 4),
                "warnings": [*measurement.warnings, *plain],
            }
        )  # fmt: skip

    def _give_up(self, method: Method, pending: list[Case], failure: RankFailure) -> None:
        if pending:
            first_line, _, _ = failure.message.partition("\n")
            self._note(f"beside NCCL: {method.label}: {first_line[:200]}")
        while pending:
            self._record(records.failed(pending.pop(0), failure))


def beside_cases(plan: Plan) -> list[Case]:
    """Every point of every method."""
    return [case for method in METHODS for case in _cases(plan, method)]


def _cases(plan: Plan, method: Method) -> list[Case]:
    setting = Setting(name=method.label, env=dict(method.env))
    points = [plan.case(setting, size, timing) for timing in plan.timings for size in plan.size_bytes]
    return [case.model_copy(update={"method": method.name}) for case in points]


def _unavailable(reason: str) -> RankFailure:
    return RankFailure("no_algorithm", reason, None, group_alive=True)
