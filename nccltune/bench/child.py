"""One program of somebody else, run to its end or to a time limit: its own process group, its output kept within bounds."""

import contextlib
import os
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from nccltune.launch.family import Family
from nccltune.launch.guard import Guard

# What a CUDA program needs. Nothing else is passed on: nccl-tests writes its whole environment into its JSON report.
_PASSED = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "HOME", "USER", "TMPDIR", "LANG", "LC_ALL", "XDG_RUNTIME_DIR")
_PASSED_PREFIXES = ("CUDA_", "NVIDIA_")
_KEEP_BYTES = 1 << 20
_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class ChildResult:
    """How a program ended. ``returncode`` is negative for a signal; ``output`` is stdout and stderr together."""

    returncode: int
    output: str
    seconds: float
    is_timed_out: bool = False


def clean_environment(nccl: dict[str, str]) -> dict[str, str]:
    """Return the environment of a child: a short list of this process's variables, and exactly the given NCCL ones."""
    env = {k: v for k, v in os.environ.items() if k in _PASSED or k.startswith(_PASSED_PREFIXES)}
    return {"CUDA_DEVICE_MAX_CONNECTIONS": "8", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", **env, **nccl}


def run_child(argv: list[str], env: dict[str, str], timeout_s: float, cwd: Path | None = None) -> ChildResult:
    """Run ``argv`` and return how it ended; past the limit its whole process group is killed. Raises OSError."""
    with Guard() as guard:
        return _run(argv, env, timeout_s, cwd, guard)


def _run(argv: list[str], env: dict[str, str], timeout_s: float, cwd: Path | None, guard: Guard) -> ChildResult:
    started = time.monotonic()
    process = subprocess.Popen(
        argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )  # fmt: skip
    guard.watch(process.pid)
    family = Family(process.pid)
    assert process.stdout is not None
    output = _Output(process.stdout)
    is_timed_out = False
    try:
        process.wait(timeout=max(timeout_s, 0.0))
    except subprocess.TimeoutExpired:
        is_timed_out = True
    finally:
        # Also after an interrupt, and for what a finished program left running: nothing of the group survives.
        family.end(_GRACE_S)
        guard.dismiss()  # not before: where a further interrupt cuts the end short, the guard goes on with it
        process.wait()
        text = output.close()
    return ChildResult(process.returncode, text, time.monotonic() - started, is_timed_out)


class _Output:
    """Reads a pipe to its end in a thread, keeping the first and the last megabyte."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._head = bytearray()
        self._tail = bytearray()
        self._is_cut = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def close(self) -> str:
        """Return what was read; a process outside the group that still holds the pipe is not waited for."""
        self._thread.join(timeout=_GRACE_S)
        if not self._thread.is_alive():
            self._pipe.close()
        middle = b"\n" if self._is_cut else b""
        return (bytes(self._head) + middle + bytes(self._tail)).decode("utf-8", errors="replace")

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while chunk := os.read(self._pipe.fileno(), 1 << 16):
                room = _KEEP_BYTES - len(self._head)
                self._head += chunk[:room] if room > 0 else b""
                self._tail += chunk[max(room, 0) :]
                if len(self._tail) > 2 * _KEEP_BYTES:
                    self._is_cut = True
                    del self._tail[:-_KEEP_BYTES]
