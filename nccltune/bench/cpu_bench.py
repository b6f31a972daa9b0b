"""Time all-reduces on one CPU rank (gloo): the embedded stand-in for a machine without GPUs, measured for real.

Same interface as CudaBench. There are no graphs on a CPU: a replay is ``num_per_replay`` calls in a row.
"""

import time
from typing import Any

from nccltune.bench import sums

_WARMUP_REPLAYS = 1
_MAX_WEIGHT_BYTES = 8 << 20  # a CPU streams this in about a millisecond: enough to part the collectives


class CpuBench:
    """Buffers and timing of one rank."""

    def __init__(self, torch: Any, dtype: str, rank: int, num_ranks: int, max_bytes: int, hidden_size: int) -> None:
        self._torch, self.rank, self.num_ranks = torch, rank, num_ranks
        torch.set_num_threads(1)
        self._dtype = getattr(torch, dtype)
        self._element = torch.empty(0, dtype=self._dtype).element_size()
        self._hidden = hidden_size
        self._buffer = torch.zeros(max_bytes // self._element, dtype=self._dtype)
        self._barrier_buffer = torch.zeros(1)
        self._weights: Any = None
        self._work: tuple[Any, Any, int, bool] | None = None

    def facts(self) -> dict[str, Any]:
        """What the rank runs on."""
        return {"device": "cpu", "num_threads": self._torch.get_num_threads()}

    def message(self, size_bytes: int) -> Any:
        """The first ``size_bytes`` of the buffer."""
        return self._buffer[: size_bytes // self._element]

    def resolve(self, comm: Any, size_bytes: int) -> dict[str, Any]:
        """Gloo does not tell what it does for a size."""
        return {"size_bytes": size_bytes, "nodes": [], "model_us": None}

    def check(self, comm: Any, size_bytes: int, seeds: list[int]) -> tuple[int, int]:
        """Sum fresh exact data; return (wrong elements, elements checked)."""
        message, wrong = self.message(size_bytes), 0
        for seed in seeds:
            sums.fill(self._torch, message, self.rank, seed)
            comm.all_reduce(message, None)
            wrong += sums.count_wrong(self._torch, message, self.num_ranks, seed)
        return wrong, message.numel() * len(seeds)

    def begin(
        self, comm: Any, comm_key: int, size_bytes: int, timing: str, num_per_replay: int, weight_bytes: int
    ) -> None:
        """Prepare what ``replay`` times."""
        message = self.message(size_bytes)
        sums.fill(self._torch, message, self.rank, 0)
        in_forward = timing == "in-forward"
        if in_forward:
            width = max(16, min(weight_bytes, _MAX_WEIGHT_BYTES) // (self._hidden * 4))
            if self._weights is None or self._weights.shape[1] != width:
                self._weights = self._torch.randn(self._hidden, width)
        self._work = (comm, message, num_per_replay, in_forward)
        self.replay(_WARMUP_REPLAYS)

    def replay(self, num: int) -> dict[str, list[float]]:
        """Time ``num`` replays, microseconds; with compute between the calls also the compute alone."""
        assert self._work is not None
        comm, message, per_replay, in_forward = self._work
        x = self._torch.ones(1, self._hidden) if in_forward else None
        full, compute = [], []
        for _ in range(num):
            full.append(self._run(comm, message, per_replay, x))
            if in_forward:
                compute.append(self._run(None, message, per_replay, x))
        return {"full_us": full, "compute_us": compute}

    def forget(self, comm_key: int) -> None:
        """Drop what holds the communicator."""
        self._work = None

    def _run(self, comm: Any, message: Any, num: int, x: Any) -> float:
        barrier = self._work[0] if self._work else comm
        barrier.all_reduce(self._barrier_buffer, None)
        start = time.perf_counter_ns()
        for _ in range(num):
            if x is not None:
                self._torch.mm(x, self._weights)
            if comm is not None:
                comm.all_reduce(message, None)
        return (time.perf_counter_ns() - start) / 1e3
