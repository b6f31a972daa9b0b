"""The stored runs of 2x H200 (reports/2026-11-30-h200-x2): real data through store, fit, emit and predict."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from nccltune import api
from nccltune.errors import QualityError
from nccltune.registry import load_model
from nccltune.store import Run

DATA = Path(__file__).parents[2] / "reports" / "2026-11-30-h200-x2" / "data"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Copies with a fit each, so that nothing is written under reports/."""
    folder = tmp_path_factory.mktemp("h200")
    for name in ("p2p", "shm", "nt"):
        shutil.copytree(DATA / name, folder / name)
        api.fit(folder / name)
    return folder


def medians(run: Path, timing: str) -> dict[tuple[str, int], float]:
    found = Run.load(run).measurements()
    return {
        (m.setting.id, m.size_bytes): m.median_us
        for m in found
        if m.timing == timing and m.status == "ok" and not m.repeat
    }


def test_every_case_of_the_grid_is_there_and_in_force(runs):
    run = Run.load(runs / "p2p")
    cases = [m for m in run.measurements() if not m.repeat]
    assert len(cases) == 44 * 11 * 2
    assert {(m.status, m.in_force) for m in cases} == {("ok", True)}
    assert all(m.num_wrong == 0 and m.num_checked >= 2 * m.count for m in cases)
    # what was asked for is what NCCL logged and the graph held
    for m in cases:
        assert m.choice is not None
        assert m.choice.source == "nccl-log+graph-node"
        for variable, got in (("NCCL_ALGO", m.choice.algo), ("NCCL_PROTO", m.choice.proto)):
            assert m.setting.env.get(variable, got) == got
        most = m.setting.env.get("NCCL_MAX_NCHANNELS")
        assert most is None or m.choice.num_channels <= int(most)


def test_back_to_back_medians_agree_with_nccl_tests(runs):
    ours, theirs = medians(runs / "p2p", "back-to-back"), medians(runs / "nt", "back-to-back")
    differences = np.array([abs(ours[key] / theirs[key] - 1) for key in theirs])
    assert differences.size == 110
    assert np.mean(differences <= 0.03) >= 0.95
    assert np.median(differences) < 0.01


def test_an_all_reduce_costs_more_in_a_forward_than_back_to_back(runs):
    inside, back = medians(runs / "p2p", "in-forward"), medians(runs / "p2p", "back-to-back")
    ratios = [inside[key] / back[key] for key in inside if key[1] <= 16 * 14336]
    assert min(ratios) > 1.0
    assert 1.1 < np.median(ratios) < 1.4


def test_with_peer_access_nothing_beats_the_base(runs):
    fit = Run.load(runs / "p2p").load_fit()
    assert fit.best is None
    seed = next(s for s in fit.settings if s.setting.name == "seed")
    assert seed.usable
    assert {m.method for m in Run.load(runs / "p2p").all_measurements()} >= {
        "nccl",
        "sglang-custom-v2",
        "symm-mem-one-shot",
    }
    fastest = min((b for b in fit.beside if b.points), key=lambda b: b.points[0].time_us)
    assert fastest.method == "sglang-custom-v2"


def test_through_host_memory_more_channels_win_and_emit_names_the_price(runs):
    fit = Run.load(runs / "shm").load_fit()
    assert fit.best == "LL Ring 16ch"
    assert set(fit.tied_with_best) == {"LL Ring 32ch", "LL Ring 8ch"}
    emitted = api.emit(runs / "shm", objective="decode")
    assert emitted.document.env["NCCL_MAX_NCHANNELS"] == "16"
    assert emitted.document.env["NCCL_ALGO"] == "allreduce:ring"
    assert "prefill sizes pay for it" in emitted.text


def test_predict_prices_another_model_from_the_run_without_any_engine_point(runs):
    """SGLang 0.5.14 measured 4.57, 6.00 and 9.09 ms on such a machine (costmodel.md, yardstick)."""
    prediction = api.predict([1], batch=[1, 4, 16], model="qwen3-30b-a3b", run=runs / "p2p", context=192)
    rows = {row.batch_size: row for row in prediction.rows if row.draft_tokens == 1}
    for batch, measured in ((1, 4.57), (4, 6.00), (16, 9.09)):
        verify = rows[batch].verify_ms
        assert verify.value == pytest.approx(measured, rel=0.15)
        assert verify.low < measured < verify.high


def test_communication_changes_with_the_setting_and_compute_does_not(runs):
    slow = api.predict([4], run=runs / "shm", setting="Simple Ring")
    fast = api.predict([4], run=runs / "shm", setting="LL Ring 16ch")
    a, b = (next(r for r in p.rows if r.draft_tokens == 4) for p in (slow, fast))
    assert a.comm_ms.value > 1.5 * b.comm_ms.value
    assert a.compute_ms.value == pytest.approx(b.compute_ms.value, rel=1e-9)
    count = load_model("kimi-k2.5").num_allreduces
    assert b.comm_ms.value == pytest.approx(count * 13.5e-3, rel=0.25), (
        "123 all-reduces of 56 KiB, plus the gather of logits"
    )


CONFIRMED = {
    "env": {"NCCL_PROTO": "allreduce:LL", "NCCL_ALGO": "allreduce:ring", "NCCL_MIN_NCHANNELS": "16", "NCCL_MAX_NCHANNELS": "16"},
    "setting": "LL Ring 16ch",
    "num_launches": 3,
    "other_collectives": {"all_gather": "", "reduce_scatter": "", "broadcast": ""},
    "outcome": "complete",
}  # fmt: skip


def confirmed_copy(runs: Path, folder: Path, **changes) -> Path:
    shutil.copytree(runs / "shm", folder / "run")
    run = Run.load(folder / "run")
    run.update(options={**run.manifest.options, "confirmations": [{**CONFIRMED, **changes}]})
    return folder / "run"


def test_a_confirmed_set_says_so(runs, tmp_path):
    text = api.emit(confirmed_copy(runs, tmp_path), objective="decode").text
    assert (
        "# confirmed: 3 more launches of exactly this set, in turn with the base; all-gather, reduce-scatter and broadcast give right data"
        in text
    )


def test_the_confirmation_of_another_set_says_nothing(runs, tmp_path):
    path = confirmed_copy(runs, tmp_path, env={"NCCL_PROTO": "allreduce:LL"})
    assert "confirmed" not in api.emit(path, objective="decode").text


def test_a_set_that_failed_when_it_was_launched_again_is_refused(runs, tmp_path):
    path = confirmed_copy(runs, tmp_path, num_launches=2, problem="timeout at 14 KiB: rank 1 did not answer")
    with pytest.raises(QualityError, match="exactly as it is written, it failed: timeout at 14 KiB"):
        api.emit(path, objective="decode")
    text = api.emit(path, objective="decode", force=True).text
    assert "confirmed: 2 more launches" in text
    assert "WARNING: launched again exactly as it is written, it failed" in text


def test_the_full_set_does_not_carry_the_confirmation_of_a_part_of_it(runs, tmp_path):
    path = confirmed_copy(runs, tmp_path, env={"NCCL_MIN_NCHANNELS": "16", "NCCL_MAX_NCHANNELS": "16"})
    assert "confirmed" not in api.emit(path, objective="decode", full=True).text


def test_a_set_under_which_another_collective_fails_is_refused(runs, tmp_path):
    path = confirmed_copy(
        runs, tmp_path, other_collectives={"all_gather": "no algorithm", "reduce_scatter": "", "broadcast": ""}
    )
    with pytest.raises(QualityError, match="all_gather fails under it: no algorithm"):
        api.emit(path, objective="decode")
    assert "WARNING: all_gather fails under it" in api.emit(path, objective="decode", force=True).text
