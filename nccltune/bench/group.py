"""A group of rank processes: start, command, watch, kill. A rank that hangs or dies becomes a RankFailure, never a stuck scan."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from nccltune.launch import local
from nccltune.schemas.measurement import ErrorKind

# When one rank has answered with an error, the others may wait for it inside a collective: so long may they take.
GRACE_S = 5.0
_STOP_S = 3.0
# A killed process is gone at once, unless it waits inside the driver; a core dump takes its time.
_EXIT_S = 5.0
_TAIL_BYTES = 4000


_SIGNAL_ADVICE: dict[int, str] = {
    signal.SIGKILL: " (the kernel does that when memory runs out)",
    signal.SIGBUS: " (usually /dev/shm is full: --shm-size=1g or --ipc=host for a container)",
}


class RankFailure(Exception):  # noqa: N818 - an event of the walk, turned into a record
    """A command did not succeed on all ranks."""

    def __init__(self, kind: ErrorKind, message: str, rank: int | None, *, group_alive: bool) -> None:
        super().__init__(message)
        self.kind: ErrorKind = kind
        self.message = message
        self.rank = rank
        self.group_alive = group_alive


class RankGroup:
    """One process a rank, each in a process group of its own, all killed together."""

    def __init__(self, num_ranks: int, workdir: Path) -> None:
        self.num_ranks = num_ranks
        self.workdir = workdir
        self._processes: list[subprocess.Popen[bytes]] = []
        self._replies: list[int] = []
        self._buffers = [b""] * num_ranks
        self._output_start = [0] * num_ranks
        self._selector = selectors.DefaultSelector()
        try:
            for rank in range(num_ranks):
                self._spawn(rank)
        except BaseException as error:  # Ctrl-C between two of them included: none may be left behind
            self.kill()
            if not isinstance(error, OSError):
                raise
            text = f"a rank cannot be started: {error.strerror or error}"
            raise RankFailure("other", text, len(self._processes), group_alive=False) from error

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks."""
        return [process.pid for process in self._processes]

    def call(
        self,
        op: str,
        timeout_s: float,
        *,
        per_rank: list[dict[str, Any]] | None = None,
        ranks: list[int] | None = None,
        **fields: Any,
    ) -> list[dict[str, Any]]:
        """Send a command to all ranks (or ``ranks``) and return their answers in rank order.

        Raises RankFailure when a rank does not answer within ``timeout_s``, dies, or answers with an error.
        """
        wanted = list(range(self.num_ranks)) if ranks is None else ranks
        # What was printed before is about earlier commands, and may be about earlier failures.
        self._output_start = [self._output_size(rank) for rank in range(self.num_ranks)]
        for index, rank in enumerate(wanted):
            extra = per_rank[index] if per_rank else {}
            self._send(rank, {"op": op, **fields, **extra})
        answers: dict[int, dict[str, Any]] = {}
        deadline = time.monotonic() + timeout_s
        while len(answers) < len(wanted):
            rest = deadline - time.monotonic()
            if rest <= 0:
                self._fail_silent(op, wanted, answers, timeout_s)
            for rank, answer in self._read(wanted, rest):
                answers[rank] = answer
                if "error" in answer:
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        failed = next(((rank, a["error"]) for rank, a in sorted(answers.items()) if "error" in a), None)
        if failed is not None:
            self._fail(failed[1], failed[0], group_alive=True)
        return [answers[rank] for rank in wanted]

    def output_tail(self, rank: int) -> str:
        """The end of what a rank printed since the last command, for the record of a failure."""
        with contextlib.suppress(OSError), self._output(rank).open("rb") as file:
            file.seek(max(self._output_start[rank], self._output_size(rank) - _TAIL_BYTES))
            return file.read().decode(errors="replace")
        return ""

    def close(self) -> None:
        """End the ranks; those that do not end in time are killed."""
        with contextlib.suppress(RankFailure):
            for rank in range(self.num_ranks):
                self._send(rank, {"op": "exit"})
        deadline = time.monotonic() + _STOP_S
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """Kill every rank and what it started, and reap them."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_EXIT_S)
            if process.stdin:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        self._selector.close()
        for fd in self._replies:
            with contextlib.suppress(OSError):
                os.close(fd)
        self._replies = []

    def _spawn(self, rank: int) -> None:
        read_fd, write_fd = os.pipe()
        self._replies.append(read_fd)
        try:
            with self._output(rank).open("ab") as output:
                process = subprocess.Popen(
                    local.command(rank, write_fd), stdin=subprocess.PIPE, stdout=output, stderr=output,
                    env=local.environment(), pass_fds=(write_fd,), start_new_session=True,
                )  # fmt: skip
        finally:
            os.close(write_fd)
        self._processes.append(process)
        os.set_blocking(read_fd, False)
        self._selector.register(read_fd, selectors.EVENT_READ, rank)

    def _output(self, rank: int) -> Path:
        return self.workdir / f"rank{rank}.out"

    def _output_size(self, rank: int) -> int:
        with contextlib.suppress(OSError):
            return self._output(rank).stat().st_size
        return 0

    def _send(self, rank: int, message: dict[str, Any]) -> None:
        stdin = self._processes[rank].stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps(message).encode() + b"\n")
            stdin.flush()
        except (OSError, ValueError):  # a broken pipe; a pipe that was closed when the group was killed
            self._fail_dead(rank)

    def _read(self, wanted: list[int], timeout_s: float) -> list[tuple[int, dict[str, Any]]]:
        found = []
        for key, _ in self._selector.select(min(timeout_s, 1.0)):
            rank = key.data
            data = os.read(key.fd, 1 << 20)
            if not data:
                self._fail_dead(rank)
            self._buffers[rank] += data
            while b"\n" in self._buffers[rank]:
                line, self._buffers[rank] = self._buffers[rank].split(b"\n", 1)
                if rank in wanted:
                    found.append((rank, json.loads(line)))
        return found

    def _fail_dead(self, rank: int) -> None:
        # The rank that died is the cause; what the others say is about the connection that it broke.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._processes[rank].wait(_EXIT_S)
        reason = _how_it_ended(self._processes[rank].returncode)
        tail = self.output_tail(rank)
        self.kill()
        raise RankFailure(classify(tail, "crash"), f"rank {rank} {reason}", rank, group_alive=False)

    def _fail_silent(self, op: str, wanted: list[int], answers: dict[int, dict[str, Any]], timeout_s: float) -> None:
        silent = [rank for rank in wanted if rank not in answers]
        error = next(((rank, a["error"]) for rank, a in sorted(answers.items()) if "error" in a), None)
        self.kill()
        if error is not None:
            self._fail(error[1], error[0], group_alive=False)
        names = ", ".join(map(str, silent))
        raise RankFailure(
            "hang",
            f"rank {names} did not answer '{op}' within {timeout_s:g} s; the process group was killed",
            silent[0],
            group_alive=False,
        )

    def _fail(self, text: str, rank: int, *, group_alive: bool) -> None:
        kind = classify(text, "other")
        # A CUDA error stays with its context: every later call in that process fails too.
        if group_alive and kind in ("cuda", "out_of_memory", "crash"):
            self.kill()
            group_alive = False
        raise RankFailure(kind, text, rank, group_alive=group_alive)


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "closed its pipe and does not end"
    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}{_SIGNAL_ADVICE.get(-code, '')}"
    return f"was ended by signal {-code}"


def classify(text: str, otherwise: ErrorKind) -> ErrorKind:
    """Name the kind of failure from its text."""
    from nccltune.parse.nccl_errors import classify_nccl_error

    failure = classify_nccl_error(text)
    return failure.kind if failure is not None else otherwise
