"""A communicator with memory of its own: messages lie in it, its result is what is checked, and nothing outlives it."""

import contextlib
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="the measuring extra is not installed")

from nccltune.bench.comm import Comm  # noqa: E402
from nccltune.bench.cuda_bench import CudaBench  # noqa: E402

HIDDEN = 32
SIZE = 2 * HIDDEN * 3  # three tokens of bfloat16


class CpuTorch:
    """torch whose CUDA device is the CPU: streams do nothing, a graph runs its work again at every replay."""

    class Event:
        def __init__(self, enable_timing):
            pass

        def record(self, stream):
            pass

        def elapsed_time(self, other):
            return 0.001

    def __getattr__(self, name):
        return getattr(torch, name)

    def device(self, kind, index):
        return torch.device("cpu")

    @property
    def cuda(self):
        return SimpleNamespace(
            set_device=lambda device: None, Event=self.Event, stream=lambda stream: contextlib.nullcontext(),
            Stream=lambda device: SimpleNamespace(synchronize=lambda: None),
            get_device_properties=lambda device: SimpleNamespace(L2_cache_size=1 << 20),
        )  # fmt: skip


class CpuGraphs(CudaBench):
    """The bench with graphs that are plain calls."""

    def _capture(self, work, comm=None):
        with contextlib.nullcontext() if comm is None else comm.capturing():
            work()
        return SimpleNamespace(instantiate=lambda: None, replay=work)


class OutOfPlace(Comm):
    """Sums one rank: copies the message to memory of its own."""

    def __init__(self, num_elements=None, wrong=False):
        self.seen, self.num_captures, self._wrong = [], 0, wrong
        self.buffer = None if num_elements is None else torch.zeros(num_elements, dtype=torch.bfloat16)
        self.out = torch.zeros(1 << 16, dtype=torch.bfloat16)

    def all_reduce(self, tensor, stream):
        self.seen.append((tensor.data_ptr(), tensor.numel()))
        self.out[: tensor.numel()] = tensor
        if self._wrong:
            self.out[0] += 1
        return self.out[: tensor.numel()]

    @contextlib.contextmanager
    def capturing(self):
        yield
        self.num_captures += 1

    def close(self, *, abort):
        self.buffer = None


@pytest.fixture
def bench():
    return CpuGraphs(CpuTorch(), 0, "bfloat16", 0, 1, 10 * 2 * HIDDEN, HIDDEN)


def test_the_buffer_asked_for_holds_the_longest_message_and_the_barrier(bench):
    # 10 tokens x 32 = 320 elements, five times 64, and 64 for the barrier.
    assert bench.num_elements == 384


def test_messages_and_barrier_lie_in_the_communicators_memory(bench):
    comm = OutOfPlace(bench.num_elements)
    first = comm.buffer.data_ptr()
    for timing in ("back-to-back", "in-forward", "eager"):
        bench.begin(comm, 1, SIZE, timing, 4, 1 << 16)
        bench.replay(2)
    # The barrier's 64 elements follow the 320 of the longest message, two bytes each.
    assert set(comm.seen) == {(first, SIZE // 2), (first + 640, 64)}
    assert comm.num_captures == 3  # two timed graphs and the barrier; the compute alone communicates nothing


def test_without_memory_of_its_own_the_benchs_is_used(bench):
    comm = OutOfPlace()
    bench.begin(comm, 1, SIZE, "in-forward", 4, 1 << 16)
    assert (bench.message(comm, SIZE).data_ptr(), SIZE // 2) in comm.seen
    assert bench.message(comm, SIZE).data_ptr() == bench._buffer.data_ptr()


@pytest.mark.parametrize(("wrong", "num_wrong"), [(False, 0), (True, 3)])
def test_the_sum_is_looked_for_where_the_communicator_puts_it(bench, wrong, num_wrong):
    # One element of 96 is off, in each of three fillings; the message itself holds one rank's right data all the time.
    comm = OutOfPlace(bench.num_elements, wrong)
    assert bench.check(comm, SIZE, [1, 2, 3]) == (num_wrong, 3 * SIZE // 2)


def test_graphs_that_write_to_it_end_with_it(bench):
    shared, own = OutOfPlace(), OutOfPlace(bench.num_elements)
    bench.begin(shared, 1, SIZE, "in-forward", 4, 1 << 16)
    bench.begin(own, 2, SIZE, "in-forward", 4, 1 << 16)
    assert sorted(key[0] for key in bench._compute_graphs) == [0, 2]
    bench.forget(2)
    assert [key[0] for key in bench._compute_graphs] == [0]
    assert list(bench._barriers) == [1]
