"""Scans with real processes for the integration tests, and what they must not leave behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from nccltune.bench import report
from nccltune.bench.request import ScanRequest
from nccltune.bench.sampling import StopRule

QUICK = StopRule(min_replays=5, max_replays=5, chunk=5)
BASE_COMMAND = ["scan", "--backend", "gloo", "--max-replays", "20"]
DEADLINE_S = 60.0


def workers(folder: Path) -> list[int]:
    """Rank processes whose temporary folder is ``folder``: those of one test."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command, environment = (path / "cmdline").read_bytes(), (path / "environ").read_bytes()
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if (
            b"nccltune.bench.worker" in command
            and f"TMPDIR={folder}".encode() in environment.split(b"\0")
            and state != "Z"
        ):
            found.append(int(path.name))
    return sorted(found)


def wait_for(condition, what, seconds=DEADLINE_S):
    """Poll until ``condition()`` is true and return its value; fail the test when it never is."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what} did not happen within {seconds} s")


def gloo_scan(path: Path, sizes: list[int], *, resume: bool = False, **fields) -> report.ScanResult:
    """Scan in this process (the ranks are processes of their own); a resumed run keeps its own stop rule."""
    request = ScanRequest(backend="gloo", size_bytes=sizes, rule=StopRule() if resume else QUICK, **fields)
    return report.scan(request, output=None if resume else path, resume=path if resume else None, on_event=None)


class Command:
    """``nccltune scan`` as a process of its own, as a user starts it."""

    def __init__(self, arguments: list[str], *, fault: str = "") -> None:
        env = {**os.environ, "NCCLTUNE_FAULT": fault}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nccltune", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            text=True,
        )
        self._stderr = ""

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the manager alone."""
        self.process.send_signal(number)

    def wait_for(self, condition, what):
        """Wait as ``wait_for`` does, but not for a command that has ended."""
        wait_for(lambda: condition() or self.process.poll() is not None, what)
        if self.process.poll() is not None:
            raise AssertionError(f"{what} did not happen: {self.finish()}")

    def wait_for_stderr(self, text: str) -> None:
        """Read stderr up to the line that holds ``text``."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._stderr += line
            if text in line:
                return
        raise AssertionError(f"'{text}' was not said: {self._stderr}")

    def finish(self, seconds: float = DEADLINE_S) -> tuple[int, str, str]:
        """Wait for the end; return exit code, stdout and stderr."""
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out, self._stderr + err


def num_lines(run: Path) -> int:
    """Finished cases on disk."""
    path = run / "measurements.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0
