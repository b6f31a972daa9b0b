"""A whole scan with its confirmation on real GPUs: through host memory, where a setting wins."""

import pytest

from nccltune import api
from nccltune.bench.confirm import LAUNCHES
from nccltune.bench.request import ScanRequest
from nccltune.plan import Grid
from nccltune.registry import load_model

pytestmark = pytest.mark.multigpu


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    request = ScanRequest(
        backend="nccl", num_ranks=2, model=load_model("kimi-k2.5"), tokens=[1, 4, 8, 16, 512], force=True, beside=False,
        grid=Grid(protos=("LL", "Simple"), algos=("Ring",), channels=("default", "16")), base_extra={"NCCL_P2P_DISABLE": "1"},
    )  # fmt: skip
    return api.scan(request, output=tmp_path_factory.mktemp("confirm") / "run")


def test_what_is_written_was_confirmed_in_launches_of_its_own(result):
    found = result.run.manifest.confirmations[-1]
    assert (found.outcome, found.num_launches, found.problem) == ("complete", LAUNCHES, "")
    assert {"NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"} <= set(
        found.env
    )  # what wins there (reports/2026-11-30-h200-x2)
    assert found.other_collectives == {"all_gather": "", "reduce_scatter": "", "broadcast": ""}
    launches = [m for m in result.run.measurements() if m.setting.name == found.setting and m.repeat]
    assert {m.status for m in launches} == {"ok"}
    assert len(launches) >= LAUNCHES * 5


def test_every_kept_variable_carries_its_own_gain(result):
    emitted = api.emit(result.run.path, objective="decode")
    assert f"confirmed: {LAUNCHES} more launches of exactly this set" in emitted.text
    assert "not separately measured" not in emitted.text


def test_a_resume_of_a_confirmed_run_measures_nothing(result):
    before = len(result.run.all_measurements())
    assert len(api.scan(None, resume=result.run.path).run.all_measurements()) == before
