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


def test_the_winner_is_confirmed_in_launches_of_its_own(result):
    found = result.run.manifest.options["confirmation"]
    assert result.fit.best == "LL Ring 16ch"
    assert found["outcome"] == "complete"
    assert found["num_launches"] == LAUNCHES
    assert found["env"]["NCCL_ALGO"] == "allreduce:ring"
    assert found["other_collectives"] == {"all_gather": "", "reduce_scatter": "", "broadcast": ""}
    launches = [m for m in result.run.measurements() if m.setting.name == "LL Ring 16ch" and m.repeat]
    assert {m.status for m in launches} == {"ok"}
    assert len(launches) == LAUNCHES * 5


def test_every_kept_variable_carries_its_own_gain(result):
    emitted = api.emit(result.run.path, objective="decode")
    text = emitted.text
    assert "confirmed: 3 more launches of exactly this set" in text
    assert "not separately measured" not in text
