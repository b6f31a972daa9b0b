"""From a request to a plan on machines described by hand: which GPUs count, and what is refused before anything runs."""

import pytest

from nccltune.bench.request import ScanRequest, prepare
from nccltune.errors import MachineError
from nccltune.schemas.machine import GpuRecord, LibraryRecord, Machine


@pytest.fixture(autouse=True)
def some_libnccl(monkeypatch):
    """The library is not looked at here."""
    library = LibraryRecord(path="/lib/libnccl.so.2", version="2.28.9")
    monkeypatch.setattr("nccltune.probe.find_libnccl", lambda path=None: library)


def machine(indices, *, num_hidden=0, busy=(), **changes):
    gpus = [GpuRecord(index=i, name="NVIDIA H200", num_processes=int(i in busy)) for i in indices]
    known = {
        "hostname_hash": "0", "os": "Linux", "kernel": "6", "python": "3.11", "cpu_model": "cpu", "num_cpus": 2,
        "memory_bytes": 1, "torch_version": "2.11.0", "gpus": gpus, "num_hidden_gpus": num_hidden,
    }  # fmt: skip
    return Machine(**{**known, **changes})


def request(**fields):
    return ScanRequest(size_bytes=[1024], **fields)


def test_a_rank_runs_on_each_visible_gpu():
    assert prepare(request(), machine([4, 5, 6, 7], num_hidden=4)).plan.num_ranks == 4
    with pytest.raises(MachineError) as caught:
        prepare(request(num_ranks=8), machine([4, 5, 6, 7], num_hidden=4))
    assert caught.value.what == "--ranks 8, but this machine has 4 GPUs, and 4 hidden by CUDA_VISIBLE_DEVICES"


def test_hidden_gpus_are_named_where_too_few_are_left():
    [note, *_] = prepare(request(), machine([3], num_hidden=7)).notes
    assert note.startswith("1 GPU found, and 7 hidden by CUDA_VISIBLE_DEVICES: ")
    with pytest.raises(MachineError, match="needs at least two GPUs") as caught:
        prepare(request(backend="nccl"), machine([], num_hidden=8))
    assert caught.value.why == "0 found, and 8 hidden by CUDA_VISIBLE_DEVICES"


def test_only_the_gpus_that_will_be_measured_must_be_idle():
    here = machine([6, 5, 4], num_hidden=5, busy={4})
    assert prepare(request(num_ranks=2), here).notes == []
    with pytest.raises(MachineError, match="in use") as caught:
        prepare(request(num_ranks=3), here)
    assert caught.value.why.startswith("GPU 4: 1 process(es)")
