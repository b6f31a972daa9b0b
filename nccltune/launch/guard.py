"""A small process that outlives the one that started it, and then ends what that one had started.

A kill -9 leaves no time to stop a server. The kernel can send its child one signal, but a server may ignore that, and a
child that left the group never gets it. So a guard waits on a pipe whose other end only the starter holds: it closes when the
starter is gone, however it went.
"""

import contextlib
import subprocess
import sys
from typing import Self

from nccltune.launch.family import Family

_POLITE_S = 10.0
_STOP_S = 5.0


class Guard:
    """Watches over one process group at a time. Start it before the group, so that no moment is unguarded."""

    def __init__(self) -> None:
        # Its own session: the signals that end the starter's group must not end the guard.
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Dismiss it; where an exception leaves, nobody knows that the group was ended: the guard does it."""
        if kind is None:
            self.dismiss()
        else:
            self._let_go()

    def watch(self, pid: int) -> None:
        """Name the leader of the group."""
        self._say(str(pid))

    def dismiss(self) -> None:
        """The group was ended: nothing is left to do. A second call changes nothing."""
        self._say("done")
        self._let_go()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)

    def _let_go(self) -> None:
        """Close the pipe: the guard ends what it still watches, and itself."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        if self._process.stdin.closed:
            return
        # A guard that was killed guards no more, but must not stop the work.
        with contextlib.suppress(OSError):
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()


def main() -> None:
    """Read process ids until the pipe closes; then end the last one's family, unless the last line was something else."""
    family: Family | None = None
    for line in sys.stdin:
        family = Family(int(line)) if line.strip().isdigit() else None
    if family is not None:
        family.end(_POLITE_S)


if __name__ == "__main__":
    main()
