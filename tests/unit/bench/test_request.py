"""From a request to a plan on machines described by hand: which GPUs count, and what is refused before anything runs."""

from pathlib import Path

import pytest

from nccltune.bench.request import ScanRequest, prepare
from nccltune.errors import MachineError
from nccltune.probe.torch_version import oldest
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


@pytest.mark.parametrize("version", ["2.4.0", "2.7.1+cu126", "1.13"])
@pytest.mark.parametrize("backend", ["nccl", "torch"])
def test_a_torch_whose_graphs_cannot_be_read_is_refused_before_anything_runs(backend, version):
    with pytest.raises(MachineError) as caught:
        prepare(request(backend=backend), machine([0, 1], torch_version=version))
    assert (caught.value.exit_code, caught.value.what) == (5, f"torch {version} cannot measure NCCL")
    assert caught.value.why
    assert "2.8 or later" in caught.value.do
    for other in ("gloo", "nccl-tests"):
        prepare(request(backend=other, timings=["back-to-back"]), machine([0, 1], torch_version=version))


@pytest.mark.parametrize("version", ["2.8.0", "2.8.0a0+5228986c39.nv25.06", "2.13.0+cpu", "3.0", "git", None])
def test_any_later_torch_will_do(version):
    assert prepare(request(), machine([0, 1], torch_version=version)).plan.num_ranks == 2


def test_the_oldest_torch_is_one_figure():
    """The package, the README and the code ask for the same."""
    root = Path(__file__).parents[3]
    assert f'torch = ["torch>={oldest()}"]' in (root / "pyproject.toml").read_text()
    assert f"torch ({oldest()} or later)" in (root / "README.md").read_text()
