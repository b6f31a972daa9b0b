"""nccl-tests reports as text: one file may hold several runs, other programs' output and NCCL's own log."""

import re
from dataclasses import dataclass, field

from nccltune.parse.nccl_errors import classify_nccl_error
from nccltune.parse.nccl_log import parse_nccl_log
from nccltune.parse.nccl_tests_lines import clean_text, lines
from nccltune.parse.nccl_tests_report import NcclTestsRun, judge
from nccltune.parse.nccl_tests_rows import RowReader, heading_layout
from nccltune.parse.nccl_tests_settings import add_requested, assignments
from nccltune.schemas.measurement import Failure

_VERSION = re.compile(r"nccl-tests version \d")
_STARTING = re.compile(r"Collective test (?:starting|concluded):\s*(\w+?)_perf")
_THREADS = re.compile(r"nThread\s+(\d+)\s+nGpus\s+(\d+)\s+minBytes\s+(\d+)\s+maxBytes\s+(\d+)\s+step:")
_GRAPH = re.compile(r"\bgraph:\s*(\d+)")
_RANK = re.compile(r"Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+\S+\s+device")
_BOUNDS = re.compile(r"Out of bounds values\s*:\s*(\d+)\s*(OK|FAILED)?")
_AVERAGE = re.compile(r"Avg bus bandwidth\s*:")
_ERROR_LINE = re.compile(r"^\s*#\s*error:\s*(\S.*)$", re.IGNORECASE)
_COMMAND = re.compile(r"(?:^|[\s/])(\w+?)_perf(?:_mpi)?\s+(?:.*\s)?-{1,2}\w")
_EXPORT = re.compile(r"^\s*(?:\$|#|\+|>)?\s*export\s+NCCL_")
_INIT_COMPLETE = re.compile(r"Init COMPLETE")
# Order in which a run prints its heading; one that does not rise starts another run.
_COMMAND_MARK, _VERSION_MARK, _STARTING_MARK, _THREADS_MARK = range(4)


@dataclass(slots=True)
class _Draft:
    """A run while it is read."""

    run: NcclTestsRun = field(default_factory=NcclTestsRun)
    reader: RowReader = field(default_factory=RowReader)
    raw: list[str] = field(default_factory=list)
    requested: dict[str, str] = field(default_factory=dict)
    ranks: set[tuple[str, str]] = field(default_factory=set)
    mark: int = -1
    threads_line: str = ""
    has_heading: bool = False
    error_line: str = ""
    is_interrupted: bool = False

    @property
    def has_output(self) -> bool:
        """Whether anything behind the first lines is there, so that another first line starts another run."""
        reader = self.reader
        return bool(
            self.has_heading or reader.rows or reader.broken_sizes or reader.num_unread or self.run.is_finished
            or self.error_line or any("Test failure" in line or "Test NCCL failure" in line for line in self.raw[-6:])
        )  # fmt: skip


def parse_text(text: str) -> list[NcclTestsRun]:
    """Read every run in ``text``, in order; an empty list where there is none."""
    drafts = [_Draft()]
    exported: dict[str, str] = {}
    for raw, line in lines(clean_text(text)):
        if _EXPORT.match(line):
            exported |= assignments(line)
        mark = _mark(line)
        if mark is not None and _starts_run(drafts[-1], mark, line):
            drafts.append(_Draft())
        draft = drafts[-1]
        if mark is not None:
            draft.mark = mark
            draft.requested = {**exported, **draft.requested}
        draft.raw.append(raw)
        _feed(draft, raw, line)
    return [_finish(draft) for draft in drafts if _is_run(draft)]


def _mark(line: str) -> int | None:
    if _VERSION.search(line):
        return _VERSION_MARK
    if "Collective test starting" in line:
        return _STARTING_MARK
    if _THREADS.search(line):
        return _THREADS_MARK
    is_command = "NCCL INFO" not in line and "Collective test" not in line and _COMMAND.search(line)
    return _COMMAND_MARK if is_command and "USAGE" not in line else None


def _starts_run(draft: _Draft, mark: int, line: str) -> bool:
    if not draft.has_output or mark > draft.mark >= 0:
        return False
    # Programs built without MPI print their first lines once per process: the same line again, before any row.
    is_repeat = mark == _THREADS_MARK and line.strip() == draft.threads_line and not draft.reader.rows
    return not (is_repeat and not draft.run.is_finished and not draft.is_interrupted and not draft.error_line)


def _feed(draft: _Draft, raw: str, line: str) -> None:
    run = draft.run
    if match := _STARTING.search(line):
        run.collective = match[1]
        run.is_finished = run.is_finished or ("concluded" in line and bool(draft.reader.rows))
    elif draft.mark == _COMMAND_MARK and (match := _COMMAND.search(line)) and not draft.has_heading:
        run.collective = match[1]
        draft.requested |= assignments(line)
    elif match := _THREADS.search(line):
        draft.threads_line = line.strip()
        graph = _GRAPH.search(line)
        run.graph_launches = int(graph[1]) if graph else None
        run.is_started = True
    elif match := _RANK.search(line):
        draft.ranks.add((match[2] or "0", match[1]))
        run.num_processes_at_rank_0 += match[1] == "0" and (match[2] or "0") == "0"
        run.is_started = True
    elif match := _BOUNDS.search(line):
        draft.reader.close()
        run.num_out_of_bounds = max(run.num_out_of_bounds or 0, int(match[1]) or int(match[2] == "FAILED"))
        run.is_finished = True
    elif _AVERAGE.search(line):
        run.is_finished = True
    elif match := _ERROR_LINE.match(line):
        draft.error_line = match[1].strip()
    elif (layout := heading_layout(line)) is not None:
        draft.reader.layout, draft.has_heading, run.is_started = layout, True, True
        run.is_cpu_time = layout.is_cpu_time
    elif line.lstrip().startswith("^C"):
        draft.is_interrupted = True
    else:
        run.is_started = run.is_started or bool(_INIT_COMPLETE.search(raw))
        draft.reader.feed(line)


def _is_run(draft: _Draft) -> bool:
    reader = draft.reader
    return bool(
        draft.mark >= _VERSION_MARK or draft.has_heading or draft.ranks or reader.rows or draft.run.is_finished
        or reader.broken_sizes or reader.num_unread or (draft.mark >= 0 and classify_nccl_error("\n".join(draft.raw)))
        or any("Test NCCL failure" in line or "Test CUDA failure" in line for line in draft.raw)
    )  # fmt: skip


def _finish(draft: _Draft) -> NcclTestsRun:
    run, reader, text = draft.run, draft.reader, "\n".join(draft.raw)
    reader.end()
    run.rows, run.broken_sizes, run.num_unread_rows = reader.rows, reader.broken_sizes, reader.num_unread
    run.unfinished_bytes = reader.unfinished_bytes
    log = parse_nccl_log(text)
    run.nccl_version, run.choices, run.rejected = log.nccl_version, log.choices, log.rejected
    run.settings_in_force = dict(log.settings_in_force)
    add_requested(run, draft.requested, "the command line", has_log=bool(log.settings_in_force or log.rejected))
    groups = {group for group, _ in draft.ranks}
    if draft.ranks:
        run.num_ranks = max(sum(g == group for g, _ in draft.ranks) for group in groups)
    elif log.num_ranks:
        run.num_ranks = log.num_ranks
    failure = classify_nccl_error(text)
    if draft.error_line:
        failure = failure or Failure(kind="nccl", message=draft.error_line)
        run.is_finished = False
    result = judge(run, failure)
    if draft.is_interrupted and result.error is None and result.status == "incomplete":
        result.error = Failure(
            kind="hang", message="stopped by hand before it ended: it may have hung at the next size"
        )
    if result.error is not None and result.error.kind == "hang" and (used := _transports(log.transports)):
        result.warnings.append(f"the ranks had connected over {used}")
    return result


def _transports(transports: dict[str, int]) -> str:
    return " and ".join(name for name, number in transports.items() if number)
