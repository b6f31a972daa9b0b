"""The program ``all_reduce_perf``: where it is, what this build can do, and one call of it with everything that it wrote."""

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from nccltune.bench.child import ChildResult, clean_environment, run_child
from nccltune.bench.size_runs import SizeRun
from nccltune.errors import InputError, MachineError
from nccltune.parse.nccl_errors import classify_nccl_error
from nccltune.parse.nccl_log import NcclLog, parse_nccl_log
from nccltune.parse.nccl_tests import NcclTestsRun, Row, parse_nccl_tests
from nccltune.schemas.measurement import ELEMENT_BYTES, Failure

PROGRAM = "all_reduce_perf"
# Our name of a type -> theirs.
DTYPES = {"bfloat16": "bfloat16", "float16": "half", "float32": "float"}
_HELP_TIMEOUT_S = 20.0
# Exit code 7 is wrong results (NVIDIA/nccl-tests src/common.h): the rows say which.
_WRONG_RESULTS_CODE = 7


@dataclass(frozen=True, slots=True)
class NcclTestsOptions:
    """How each setting is measured. One call gives one mean per size, so ``launches`` calls give the interval."""

    path: str | None = None
    iters: int = 50
    warmup: int = 5
    graph_launches: int = 30
    """Launches of the graph that holds all iterations; 0 times without a graph."""
    launches: int = 3
    timeout_s: float = 120.0
    """Limit of one call."""
    probe: bool = True
    """Read NCCL's choice from its log, in a call of its own that is not timed."""
    placement: Literal["in_place", "out_of_place"] = "in_place"


@dataclass(slots=True)
class Call:
    """One run of the program."""

    rows: dict[int, Row]
    failure: Failure | None
    seconds: float
    nccl_version: str | None = None
    log: NcclLog | None = None


def find_all_reduce_perf(explicit: str | None = None) -> Path:
    """Find the program: ``explicit`` (a file, its folder or a clone), then $NCCL_TESTS, then PATH; raises MachineError."""
    for source, named in (("--nccl-tests", explicit), ("$NCCL_TESTS", os.environ.get("NCCL_TESTS"))):
        if not named:
            continue
        root = Path(named).expanduser()
        for path in (root, root / PROGRAM, root / "build" / PROGRAM):
            if path.is_file() and os.access(path, os.X_OK):
                return path.absolute()
        why = f"{source} is {named}: " + (
            "not a program" if root.is_file() else f"no {PROGRAM} there" if root.is_dir() else "not there"
        )
        raise MachineError(f"{PROGRAM} was not found", why, "give the file or the folder that holds it")
    found = shutil.which(PROGRAM)
    if found is None:
        raise MachineError(
            f"{PROGRAM} was not found",
            "neither --nccl-tests nor $NCCL_TESTS is set, and it is not in PATH",
            "build github.com/NVIDIA/nccl-tests (make) and give --nccl-tests FOLDER, or use --backend nccl",
        )
    return Path(found).absolute()


def supports_json(path: Path) -> bool:
    """Whether this build writes JSON reports (-J): asked of its own help."""
    return "-J" in _help(path)


class Program:
    """``all_reduce_perf`` over ``num_ranks`` GPUs of this machine, in one process. Raises MachineError if it cannot do it."""

    def __init__(self, options: NcclTestsOptions, num_ranks: int, dtype: str) -> None:
        if dtype not in DTYPES:
            raise InputError(
                f"nccl-tests has no type for '{dtype}'", f"known: {', '.join(DTYPES)}", "choose one of them"
            )
        self.path, self.options, self.num_ranks = find_all_reduce_perf(options.path), options, num_ranks
        self.dtype, self.element_bytes = DTYPES[dtype], ELEMENT_BYTES[dtype]
        if options.graph_launches and "-G" not in _help(self.path):
            raise MachineError(f"{self.path} cannot time CUDA graphs", "its help has no -G", "build a newer nccl-tests")

    def command(self, run: SizeRun, json_file: Path | None, *, is_probe: bool = False) -> list[str]:
        """Return the argv of one call."""
        how = self.options
        argv = [str(self.path), *run.arguments(), "-g", str(self.num_ranks), "-t", "1", "-d", self.dtype, "-o", "sum"]
        if is_probe:
            return [*argv, "-n", "1", "-w", "1", "-c", "0"]
        argv += ["-n", str(how.iters), "-w", str(how.warmup), "-c", "1"]
        argv += ["-G", str(how.graph_launches)] if how.graph_launches else []
        return [*argv, "-J", str(json_file)] if json_file is not None else argv

    def call(self, run: SizeRun, env: dict[str, str], deadline: float | None, *, is_probe: bool = False) -> Call:
        """Run the program once over ``run``; a program that fails, hangs or prints nothing is a Call with a failure."""
        limit = self.options.timeout_s if deadline is None else min(self.options.timeout_s, deadline - time.monotonic())
        if limit <= 0:
            return Call({}, Failure(kind="timeout", message="the time limit was reached before this call"), 0.0)
        with tempfile.TemporaryDirectory(prefix="nccltune-") as name:
            folder = Path(name)
            json_file = folder / "report.json" if not is_probe and supports_json(self.path) else None
            log_env = _log_environment(folder) if is_probe else {}
            argv = self.command(run, json_file, is_probe=is_probe)
            try:
                child = run_child(argv, clean_environment({**env, **log_env}), limit, cwd=folder)
            except OSError as error:
                raise MachineError(
                    f"{self.path} cannot be run", error.strerror or str(error), "build it again"
                ) from error
            log_text = "".join(_read(path) for path in sorted(folder.glob("nccl.*.log")))
            reports = [_read(path) for path in sorted(folder.glob("report.json*"))]
        return self._outcome(child, reports, log_text, limit < self.options.timeout_s, is_probe=is_probe)

    def _outcome(self, child: ChildResult, reports: list[str], log_text: str, is_last: bool, *, is_probe: bool) -> Call:
        """Join what the program wrote: JSON has more digits, but a killed program leaves more rows on its stdout."""
        text_run = next(iter(parse_nccl_tests(child.output)), None)
        json_run = next((run for report in reports for run in parse_nccl_tests(report)), None)
        rows: dict[int, Row] = {}
        for run in (text_run, json_run):
            rows |= {row.size_bytes: row for row in (run.rows if run else [])}
        log = parse_nccl_log(log_text) if is_probe else None
        failure = self._failure(child, text_run, rows, log_text, is_last)
        versions = [v for v in (json_run and json_run.nccl_version, log and log.nccl_version) if v]
        return Call(rows, failure, child.seconds, versions[0] if versions else None, log)

    def _failure(
        self, child: ChildResult, run: NcclTestsRun | None, rows: dict[int, Row], log_text: str, is_last: bool
    ) -> Failure | None:
        if child.is_timed_out:
            where = f" after {max(rows)} bytes" if rows else ""
            kind: Literal["hang", "timeout"] = "timeout" if is_last else "hang"
            why = "the time limit was reached" if is_last else f"no end within {self.options.timeout_s:g} s"
            return Failure(kind=kind, message=f"{why}{where}; the process group was killed")
        if child.returncode in (0, _WRONG_RESULTS_CODE) and rows:
            refused = run.error if run is not None and run.status == "refused" else None
            return refused if refused is not None and refused.kind == "no_mpi" else None
        said = classify_nccl_error(f"{log_text}\n{child.output}")
        if said is not None:
            return said
        last = next((line.strip() for line in reversed(child.output.splitlines()) if line.strip()), "no output")[:200]
        if child.returncode < 0:
            return Failure(kind="crash", message=f"ended by signal {-child.returncode}; last line: {last}")
        if child.returncode:
            return Failure(kind="other", message=f"exit code {child.returncode}; last line: {last}")
        return Failure(kind="layout", message=f"it printed no row that can be read; last line: {last}")


@lru_cache(maxsize=16)
def _help(path: Path) -> str:
    try:
        child = run_child([str(path), "--help"], clean_environment({}), _HELP_TIMEOUT_S)
    except OSError as error:
        raise MachineError(f"{path} cannot be run", error.strerror or str(error), "build it on this machine") from error
    if "-b" not in child.output:
        said = next((line.strip() for line in reversed(child.output.splitlines()) if line.strip()), "no output")
        why = "its --help did not end" if child.is_timed_out else f"its --help said: {said[:200]}"
        raise MachineError(f"{path} cannot be used", why, "check its libraries (ldd), or build it on this machine")
    return child.output


def _log_environment(folder: Path) -> dict[str, str]:
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING",
        "NCCL_DEBUG_FILE": str(folder / "nccl.%p.log"),
    }


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
