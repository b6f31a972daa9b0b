"""Time all-reduces on one GPU rank: CUDA graphs, events, and the compute of a forward between the collectives.

All ranks receive the same commands, so every rank captures and replays the same graphs; the manager takes the slowest
rank of each replay.
"""

import contextlib
from typing import Any

from nccltune.bench import sums
from nccltune.bench.comm import Comm
from nccltune.bench.forward import ForwardBody
from nccltune.bench.graph_nodes import kernel_nodes
from nccltune.bench.others import run_others

_BARRIER_ELEMENTS = 64
_WARMUP_REPLAYS = 2


class CudaBench:
    """Buffers, graphs and timing of one rank."""

    def __init__(
        self, torch: Any, device: int, dtype: str, rank: int, num_ranks: int, max_bytes: int, hidden_size: int
    ) -> None:
        self._torch, self.rank, self.num_ranks = torch, rank, num_ranks
        self._device = torch.device("cuda", device)
        torch.cuda.set_device(self._device)
        self._dtype = getattr(torch, dtype)
        self._element = torch.empty(0, dtype=self._dtype).element_size()
        self._stream = torch.cuda.Stream(self._device)
        self._hidden = hidden_size
        rows = -(-max_bytes // (hidden_size * self._element))
        self._buffer = torch.zeros(max(rows * hidden_size, _BARRIER_ELEMENTS), dtype=self._dtype, device=self._device)
        self._barrier_buffer = torch.zeros(_BARRIER_ELEMENTS, dtype=self._dtype, device=self._device)
        self._body: ForwardBody | None = None
        self._compute_graphs: dict[tuple[int, int, int, int], Any] = {}
        self._barriers: dict[int, Any] = {}
        self._full: Any = None
        self._compute: Any = None
        self._eager: tuple[Any, Any, int] | None = None
        self._barrier: Any = None

    def facts(self) -> dict[str, Any]:
        """Device name, L2 size and free memory."""
        properties = self._torch.cuda.get_device_properties(self._device)
        free, total = self._torch.cuda.mem_get_info(self._device)
        return {
            "device": properties.name,
            "l2_bytes": properties.L2_cache_size,
            "free_bytes": free,
            "total_bytes": total,
        }

    @property
    def num_elements(self) -> int:
        """Elements that a communicator's own buffer must hold: the longest message, and the barrier's behind it."""
        return -(-self._buffer.numel() // _BARRIER_ELEMENTS) * _BARRIER_ELEMENTS + _BARRIER_ELEMENTS

    def message(self, comm: Comm, size_bytes: int) -> Any:
        """The first ``size_bytes`` of the buffer: the communicator's own, if it has one."""
        return self._memory(comm)[: size_bytes // self._element]

    def resolve(self, comm: Comm, size_bytes: int) -> dict[str, Any]:
        """Capture one all-reduce without running it: its kernels and NCCL's own estimate."""
        message = self.message(comm, size_bytes)
        model_us = comm.model_us(message, self._stream)
        graph = self._capture(lambda: comm.all_reduce(message, self._stream), comm)
        nodes = [{"name": n.name, "num_blocks": n.num_blocks, "num_threads": n.num_threads} for n in self._nodes(graph)]
        return {"size_bytes": size_bytes, "nodes": nodes, "model_us": model_us}

    def check(self, comm: Comm, size_bytes: int, seeds: list[int]) -> tuple[int, int]:
        """Sum fresh exact data through a captured all-reduce; return (wrong elements, elements checked)."""
        message, sums_at = self.message(comm, size_bytes), []
        graph = self._capture(lambda: sums_at.append(comm.all_reduce(message, self._stream)), comm)
        graph.instantiate()
        wrong = 0
        with self._torch.cuda.stream(self._stream):
            for seed in seeds:
                sums.fill(self._torch, message, self.rank, seed)
                graph.replay()
                wrong += sums.count_wrong(self._torch, sums_at[0], self.num_ranks, seed)
        return wrong, message.numel() * len(seeds)

    def begin(
        self, comm: Comm, comm_key: int, size_bytes: int, timing: str, num_per_replay: int, weight_bytes: int
    ) -> None:
        """Capture what ``replay`` times: back to back, eager, or the all-reduces inside a forward."""
        message = self.message(comm, size_bytes)
        self._compute, self._full, self._eager = None, None, None
        self._barrier = self._barrier_graph(comm, comm_key)
        with self._torch.cuda.stream(self._stream):
            sums.fill(self._torch, message, self.rank, 0)
        if timing == "eager":
            self._eager = (comm, message, num_per_replay)
        elif timing == "back-to-back":
            self._full = self._capture(lambda: self._queue(comm, message, num_per_replay), comm)
            self._full.instantiate()
        else:
            self._begin_forward(comm, comm_key, size_bytes, num_per_replay, weight_bytes)
        self.replay(_WARMUP_REPLAYS)

    def replay(self, num: int) -> dict[str, list[float]]:
        """Time ``num`` replays; microseconds of the whole graph, and of the same graph without all-reduces.

        The two alternate which goes first, so that neither always finds the other's leftovers in the cache.
        """
        full: list[tuple[Any, Any]] = []
        compute: list[tuple[Any, Any]] = []
        runs = [(full, self._run_full)]
        if self._compute is not None:
            runs.append((compute, self._compute.replay))
        with self._torch.cuda.stream(self._stream):
            for i in range(num):
                for events, run in runs if i % 2 == 0 else runs[::-1]:
                    events.append(self._timed(run))
        self._stream.synchronize()
        return {
            "full_us": [start.elapsed_time(stop) * 1e3 for start, stop in full],
            "compute_us": [start.elapsed_time(stop) * 1e3 for start, stop in compute],
        }

    def others(self, comm: Any, size_bytes: int) -> dict[str, str]:
        """Fault of each other collective under this communicator, empty when it is right."""
        return run_others(self._torch, comm, self._stream, self.message(comm, size_bytes), self.rank, self.num_ranks)

    def forget(self, comm_key: int) -> None:
        """Drop the graphs that hold a communicator, so that it can be closed."""
        self._full, self._compute, self._eager, self._barrier = None, None, None, None
        self._barriers.pop(comm_key, None)
        self._compute_graphs = {key: graph for key, graph in self._compute_graphs.items() if key[0] != comm_key}

    def _memory(self, comm: Comm) -> Any:
        return self._buffer if comm.buffer is None else comm.buffer

    def _timed(self, run: Any) -> tuple[Any, Any]:
        start, stop = self._torch.cuda.Event(enable_timing=True), self._torch.cuda.Event(enable_timing=True)
        self._barrier.replay()
        start.record(self._stream)
        run()
        stop.record(self._stream)
        return start, stop

    def _run_full(self) -> None:
        if self._eager is None:
            self._full.replay()
            return
        self._queue(*self._eager)

    def _queue(self, comm: Comm, message: Any, num: int) -> None:
        for _ in range(num):
            comm.all_reduce(message, self._stream)

    def _begin_forward(
        self, comm: Comm, comm_key: int, size_bytes: int, num_per_replay: int, weight_bytes: int
    ) -> None:
        if self._body is None:
            l2_bytes = self._torch.cuda.get_device_properties(self._device).L2_cache_size
            self._body = ForwardBody(self._torch, self._device, self._dtype, self._hidden, l2_bytes)
        body = self._body
        tokens = -(-size_bytes // (self._hidden * self._element))
        width = body.width(weight_bytes)
        output = self._memory(comm)[: tokens * self._hidden].view(tokens, self._hidden)
        message = self.message(comm, size_bytes)
        with self._torch.cuda.stream(self._stream):
            body.step(tokens, width, output)  # cuBLAS picks its kernel and workspace outside the capture

        def layers(communicate: bool) -> None:
            body.rewind()  # where weights lie in memory moves a product by some percent: both graphs take the same
            for _ in range(num_per_replay):
                body.step(tokens, width, output)
                if communicate:
                    comm.all_reduce(message, self._stream)

        # A graph that writes to a communicator's own buffer ends with it (``forget``); keys of communicators start at 1.
        key = (0 if comm.buffer is None else comm_key, tokens, width, num_per_replay)
        if key not in self._compute_graphs:
            graph = self._capture(lambda: layers(False))
            graph.instantiate()
            self._compute_graphs[key] = graph
        self._compute = self._compute_graphs[key]
        self._full = self._capture(lambda: layers(True), comm)
        self._full.instantiate()

    def _barrier_graph(self, comm: Comm, comm_key: int) -> Any:
        """A tiny all-reduce that lines the ranks up before a timed graph, without a host round trip."""
        if comm_key not in self._barriers:
            message = self._barrier_buffer
            if comm.buffer is not None:
                message = comm.buffer[self.num_elements - _BARRIER_ELEMENTS : self.num_elements]
            graph = self._capture(lambda: comm.all_reduce(message, self._stream), comm)
            graph.instantiate()
            self._barriers[comm_key] = graph
        return self._barriers[comm_key]

    def _capture(self, work: Any, comm: Comm | None = None) -> Any:
        # torch.cuda.graph() runs the garbage collector and empties caches at every capture: too slow for thousands.
        graph = self._torch.cuda.CUDAGraph(keep_graph=True)
        self._stream.synchronize()
        with contextlib.nullcontext() if comm is None else comm.capturing(), self._torch.cuda.stream(self._stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        return graph

    def _nodes(self, graph: Any) -> Any:
        return kernel_nodes(graph.raw_cuda_graph())
