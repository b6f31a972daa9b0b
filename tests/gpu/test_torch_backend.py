"""torch.distributed over NCCL: the same sums, choices and times as NCCL called directly, as far as one process allows."""

import numpy as np
import pytest

from nccltune import api
from nccltune.bench.request import ScanRequest
from nccltune.knobs import find_setting
from nccltune.plan import Grid
from nccltune.registry import load_model
from nccltune.store import Run

pytestmark = pytest.mark.multigpu

LL = find_setting("NCCL_PROTO=LL;NCCL_ALGO=Ring")
ONE_CHANNEL = find_setting("NCCL_PROTO=LL;NCCL_ALGO=Ring;NCCL_MIN_NCHANNELS=1;NCCL_MAX_NCHANNELS=1")


def scan(folder, backend, timings):
    request = ScanRequest(
        backend=backend, num_ranks=2, model=load_model("kimi-k2.5"), tokens=[1, 16], grid=Grid(named=(LL, ONE_CHANNEL)),
        timings=timings, force=True, beside=False,
    )  # fmt: skip
    return api.scan(request, output=folder, confirm=False).run


def medians(run: Run) -> dict[tuple[str, int, str], float]:
    return {
        (m.setting.name, m.size_bytes, m.timing): m.median_us
        for m in run.measurements()
        if m.status == "ok" and not m.repeat
    }


def test_torch_distributed_gives_the_times_of_nccl_itself(tmp_path):
    timings = ["in-forward", "back-to-back"]
    direct, torch = (medians(scan(tmp_path / name, name, timings)) for name in ("nccl", "torch"))
    assert direct.keys() == torch.keys()
    assert len(torch) == 3 * 2 * 2
    # torch runs a collective on a stream of its own and joins it by events, so it may cost a little more, never much
    ratios = np.array([torch[key] / direct[key] for key in torch])
    assert ratios.min() > 0.8
    assert ratios.max() < 1.6


def test_library_scope_settings_get_processes_of_their_own(tmp_path):
    run = scan(tmp_path / "run", "torch", ["back-to-back"])
    one = [m for m in run.measurements() if m.setting.name == ONE_CHANNEL.name and not m.repeat]
    assert {m.status for m in one} == {"ok"}
    assert {m.choice.num_channels for m in one} == {1}
    assert all(m.num_wrong == 0 for m in one)
