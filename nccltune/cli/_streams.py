"""Standard streams that may be closed or full: an answer that cannot be written is an error, a warning that cannot is not."""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast


class _Closed(io.TextIOBase):
    """Stands for a stdout that was closed before the program began (``>&-``)."""

    def write(self, _text: str) -> int:
        raise OSError(errno.EBADF, "stdout is closed")


class _Tolerant:
    """Passes everything on to stderr; what cannot be written is lost, and nothing else."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream or io.StringIO(), name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            if self._stream is not None:
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        try:
            if self._stream is not None:
                self._stream.flush()
        except (OSError, ValueError):
            # What is left in its buffer would fail again when the program ends, and change its exit code.
            self._stream = None


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Put both in place while a command runs."""
    out, err = sys.stdout, sys.stderr
    sys.stderr = cast(TextIO, _Tolerant(err))
    if out is None:
        sys.stdout = cast(TextIO, _Closed())
    try:
        yield
    finally:
        lost = sys.stderr._stream is None  # type: ignore[attr-defined]
        if out is not None:
            _settle(out)
        sys.stdout, sys.stderr = out, err
        if lost and err is not None:
            # Python would flush it once more at the end, fail, and exit with 120.
            sys.stderr = None  # type: ignore[assignment]


def _settle(out: TextIO) -> None:
    """Flush the answer; where that fails (told already), what is left must not fail again when Python ends, with 120."""
    try:
        out.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
