"""Communicators of one rank: NCCL by ctypes, or torch.distributed; bench.beside has those beside NCCL."""

import abc
import contextlib
import os
import pathlib
from typing import Any

from nccltune.bench.libnccl import LibNccl

DEBUG_ENV = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING"}
# RAS would listen on one port for every library copy of a process.
QUIET_ENV = {"NCCL_RAS_ENABLE": "0"}


def set_nccl_env(env: dict[str, str]) -> None:
    """Make ``env`` the only NCCL_* variables of this process; NCCL reads them with getenv at its next init."""
    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        del os.environ[name]
    os.environ.update(env)


class Comm(abc.ABC):
    """What a bench times: sums over the ranks, queued on a stream or captured in a CUDA graph."""

    buffer: Any = None
    """Memory that messages must lie in, at least as long as the bench asked for; None: any memory will do."""

    @abc.abstractmethod
    def all_reduce(self, tensor: Any, stream: Any) -> Any:
        """Queue a sum of ``tensor`` over the ranks and return the tensor that holds it (``tensor``, if in place)."""

    def capturing(self) -> contextlib.AbstractContextManager[Any]:
        """Context around every graph capture; on leaving it ranks may exchange what the graph needs to run."""
        return contextlib.nullcontext()

    def model_us(self, tensor: Any, stream: Any) -> float | None:
        """NCCL's own estimate for this tensor, microseconds; None where there is none."""
        return None

    def log_text(self) -> str:
        """What the library logged since this communicator began."""
        return ""

    @abc.abstractmethod
    def close(self, *, abort: bool) -> None:
        """Leave; ``abort`` does not wait for the other ranks."""


class NcclComm(Comm):
    """One communicator of a private copy of libnccl, with the log it wrote."""

    def __init__(self, library: LibNccl, handle: int, dtype: str, log: str, log_start: int) -> None:
        self._library, self._handle, self._dtype = library, handle, dtype
        self._log, self._log_start = log, log_start

    def all_reduce(self, tensor: Any, stream: Any) -> Any:
        """Queue an in-place sum of ``tensor`` on ``stream``."""
        self._library.all_reduce(self._handle, tensor.data_ptr(), tensor.numel(), self._dtype, stream.cuda_stream)
        return tensor

    def other(self, collective: str, source: Any, target: Any, count: int, stream: Any) -> None:
        """Queue one of the other collectives that an engine uses: all_gather, reduce_scatter or broadcast."""
        call = getattr(self._library, collective)
        call(self._handle, source.data_ptr(), target.data_ptr(), count, self._dtype, stream.cuda_stream)

    def model_us(self, tensor: Any, stream: Any) -> float | None:
        """NCCL's own estimate for this tensor, microseconds."""
        return self._library.simulate_us(
            self._handle, tensor.data_ptr(), tensor.numel(), self._dtype, stream.cuda_stream
        )

    def log_text(self) -> str:
        """What this copy of NCCL logged since this communicator began."""
        return read_from(self._log, self._log_start)

    def close(self, *, abort: bool) -> None:
        """Leave the communicator; ``abort`` does not wait for the other ranks."""
        if abort:
            self._library.abort(self._handle)
        else:
            self._library.destroy(self._handle)


class TorchComm(Comm):
    """The default process group of torch.distributed (back ends nccl and gloo)."""

    def __init__(self, dist: Any, log: str = "", log_start: int = 0) -> None:
        self._dist = dist
        self._log, self._log_start = log, log_start

    def all_reduce(self, tensor: Any, stream: Any) -> Any:
        """Queue (or run) an in-place sum of ``tensor``."""
        self._dist.all_reduce(tensor)
        return tensor

    def log_text(self) -> str:
        """What NCCL logged, empty for gloo."""
        return read_from(self._log, self._log_start) if self._log else ""

    def close(self, *, abort: bool) -> None:
        """Destroy the process group; an aborted group ends with its process."""
        if not abort:
            self._dist.destroy_process_group()


def log_size(path: str) -> int:
    """Bytes in the log so far; 0 before it exists."""
    with contextlib.suppress(OSError):
        return pathlib.Path(path).stat().st_size
    return 0


def read_from(path: str, start: int) -> str:
    """Text of the log from byte ``start``; empty when there is no log."""
    try:
        with pathlib.Path(path).open("rb") as file:
            file.seek(start)
            return file.read().decode(errors="replace")
    except OSError:
        return ""
