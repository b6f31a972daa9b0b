"""One server process: its own process group on 127.0.0.1, started, waited for, and stopped for certain."""

import os
import random
import re
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nccltune.launch.family import Family, wait_for
from nccltune.launch.guard import Guard
from nccltune.parse.nccl_errors import AFTERMATH, classify_nccl_error, last_exception
from nccltune.schemas.validation_record import Cleanup, ErrorKind, Trouble
from nccltune.validation.client import Client, ServerError

_POLITE_S = 20.0
_CLEAN_S = 30.0
_POLL_S = 0.5
_BROKEN_S = 3.0
_ENDING_S = 60.0  # crash diagnostics: 5 s of sleep, then a stack dump of every process that still lives
_MEMORY_SLACK_BYTES = 1 << 30  # what a driver keeps for a context that is being torn down
_GRPC_PORT_DELTA = 10_000  # sglang/srt/server_args.py: a port above 55535 ends the server
_PORTS = range(20_000, 22_000)  # below Linux's ephemeral ports with the delta too: no client takes one meanwhile
_TAIL_BYTES = 256 * 1024
_TAIL_LINES = 40

_SIGNS: tuple[tuple[ErrorKind, str], ...] = (
    ("port_held", r"address already in use|errno 98|port \d+ is (?:already )?(?:in use|not available|occupied)"),
    ("out_of_memory", r"out of memory|outofmemoryerror|not enough memory|no available memory for the cache|please try to (?:increase|reduce) --?mem"),
    ("wrong_version", r"unrecognized arguments|no such option|invalid choice: "),
    ("usage", r"error: argument|python\S*: (?:no module named|error while finding module|can't open file)"),
)  # fmt: skip
_USAGE = re.compile(
    r"must be between \d+ and \d+|no such file or directory|not a valid model identifier|does not appear to have a file named|no module named"
    r"|repo id must be in the form|unrecognized model in|cannot find any model weights|user-specified context_length",
    re.IGNORECASE,
)  # fmt: skip
"""What an exception says when the command, not the engine, was wrong. Seen from SGLang 0.5.14."""


@dataclass
class Server:
    """A started server. ``argv`` and ``env`` are as given to the process; its output goes to ``log``."""

    argv: list[str]
    env: dict[str, str]
    port: int
    log: Path
    process: subprocess.Popen[bytes] | None = None
    family: Family | None = None
    guard: Guard | None = None
    started_s: float = 0.0
    memory_before: list[int] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Launch it; raises ServerError where the port is held or the program does not exist."""
        if not port_is_free(self.port):
            raise ServerError("port_held", f"port {self.port} is held by another process")
        self.memory_before = gpu_memory()
        self.started_s = time.monotonic()
        try:
            self.guard = Guard()
            with self.log.open("wb") as log:
                self.process = subprocess.Popen(
                    self.argv, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )  # fmt: skip
            self.family = Family(self.process.pid)
            self.guard.watch(self.process.pid)
        except OSError as error:
            self._dismiss()
            raise ServerError("not_started", f"{self.argv[0]}: {error.strerror or error}") from error

    def wait_ready(self, prompt: dict[str, Any], limit_s: float) -> float:
        """Wait for a generated token and return the seconds it took; raises ServerError. Health checks lie."""
        client = Client(self.url)
        deadline = self.started_s + limit_s
        last = "it did not listen"
        while True:
            self.check_alive()
            rest = deadline - time.monotonic()
            if rest <= 0:
                raise ServerError("start_timeout", f"no generated token within {limit_s:.0f} s; {last}")
            try:
                client.generate(prompt, 4, min(max(rest, 1.0), 120.0))
                return time.monotonic() - self.started_s
            except ServerError as trouble:
                last = trouble.message
                if trouble.kind in ("garbage", "wrong_version") and self.process is not None:
                    raise
            time.sleep(min(_POLL_S, max(rest, 0.0)))

    def check_alive(self) -> None:
        """Raise ServerError with the cause from the log if the process has ended."""
        code = self.process.poll() if self.process else None
        if code is not None:
            raise ServerError(*self.why_ended(code))

    def wait_end(self) -> int | None:
        """Return the exit code of a server whose connection broke; None where it lives on.

        The connection breaks before the process is gone, and SGLang takes seconds to look at what crashed before it ends.
        """
        assert self.process is not None
        began = time.monotonic()
        while (code := self.process.poll()) is None:
            is_ending = AFTERMATH.search(tail(self.log)) is not None
            if time.monotonic() - began > (_ENDING_S if is_ending else _BROKEN_S):
                break
            time.sleep(_POLL_S)
        return code

    def why_ended(self, code: int) -> tuple[str, str]:
        """Return kind and message of a process that ended by itself."""
        found = diagnose(tail(self.log))
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return (found.kind, f"{found.message} ({how})") if found else ("crash", f"the server ended with {how}; {_last_line(self.log)}")  # fmt: skip

    def stop(self) -> Cleanup:
        """End the whole group and what left it, and confirm that port, processes and GPU memory are free."""
        assert self.process is not None
        assert self.family is not None
        began = time.monotonic()
        left, killed = self.family.end(_POLITE_S)
        self.process.poll()
        self._dismiss()
        memory = wait_for(lambda: _memory_back(self.memory_before), _CLEAN_S) if self.memory_before else None
        port_free = wait_for(lambda: port_is_free(self.port), _CLEAN_S)
        return Cleanup(
            port_free=port_free, num_processes_left=left, gpu_memory_back=memory, killed=killed,
            seconds=round(time.monotonic() - began, 2),
        )  # fmt: skip

    def _dismiss(self) -> None:
        if self.guard is not None:
            self.guard.dismiss()
            self.guard = None


def port_is_free(port: int) -> bool:
    """Whether a server could listen on ``port`` of 127.0.0.1 now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a port in TIME_WAIT is free to them.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Return a port that is free now, and so is the one that SGLang 0.5.14 derives from it (``port + 10000``)."""
    ports = list(_PORTS)
    random.shuffle(ports)
    for port in ports:
        if port_is_free(port) and port_is_free(port + _GRPC_PORT_DELTA):
            return port
    return ports[0]  # none of two thousand: starting on it says so


def gpu_memory() -> list[int]:
    """Used bytes per GPU; empty without a driver."""
    from nccltune.probe.gpus import gpu_state

    return [gpu.used_memory_bytes or 0 for gpu in gpu_state()]


def diagnose(text: str) -> Trouble | None:
    """Find the cause of a failed server in its log."""
    # SGLang logs the models that it cannot import (an optional package is missing) and goes on; its arguments hold many words.
    lines = (line for line in text.splitlines() if "Ignore import error" not in line and "server_args=" not in line)
    text = "\n".join(lines)
    for kind, pattern in _SIGNS:
        match = re.search(rf"^.*(?:{pattern}).*$", text, re.IGNORECASE | re.MULTILINE)
        if match:
            return Trouble(kind=kind, message=_one_line(match[0]))
    raised = last_exception(text)
    if raised and _USAGE.search(raised):
        return Trouble(kind="usage", message=_one_line(raised))
    failure = classify_nccl_error(text)
    if failure is not None:
        kinds: dict[str, ErrorKind] = {"out_of_memory": "out_of_memory", "usage": "usage", "crash": "crash"}
        return Trouble(kind=kinds.get(failure.kind, "nccl"), message=failure.message)
    return Trouble(kind="crash", message=_one_line(raised)) if raised else None


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]


def tail(log: Path) -> str:
    """Last part of a log; empty without one."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def tail_lines(log: Path) -> list[str]:
    """Last lines of a log that say something."""
    return [line[:400] for line in tail(log).splitlines() if line.strip()][-_TAIL_LINES:]


def _last_line(log: Path) -> str:
    lines = tail_lines(log)
    return f"its last line: {lines[-1]}" if lines else "it printed nothing"


def _memory_back(before: Sequence[int]) -> bool:
    return all(now <= then + _MEMORY_SLACK_BYTES for now, then in zip(gpu_memory(), before, strict=False))
