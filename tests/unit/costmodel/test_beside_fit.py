"""What was measured beside NCCL never becomes a setting, and is compared with the best one."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from synthetic_run import LL, SIZES, curve, line, make_run, measurement

from nccltune.costmodel.run_fit import fit_run
from nccltune.registry import load_model
from nccltune.schemas.measurement import Case, Failure
from nccltune.schemas.setting import BASE, Setting
from nccltune.store import Run

ONE_SHOT = Setting(name="torch symmetric memory, one-shot")


def beside(method, time, sizes=SIZES, setting=ONE_SHOT, **fields):
    """All sizes of one method, with the ids that a scan gives them."""
    found = []
    for size in sizes:
        case = Case(
            setting=setting, size_bytes=size, timing="in-forward", num_ranks=8, dtype="bfloat16", base="sglang", backend="nccl",
            method=method,
        )  # fmt: skip
        median = time(size) if time else None
        found.append(measurement(setting, size, median, method=method, case_id=case.id, **fields))
    return found


def unavailable(method, reason):
    return beside(method, None, status="unsupported", in_force=None, error=Failure(kind="no_algorithm", message=reason))


@pytest.fixture(scope="module")
def kimi():
    return load_model("kimi-k2.5")


def fitted(tmp_path, kimi, *rows):
    # Base: 10 us + 1e-4 us/B; LL: 0.8 of it.
    nccl = [*curve(BASE, line(10.0, 1e-4)), *curve(LL, line(8.0, 0.8e-4))]
    run = make_run(tmp_path / "run", [*nccl, *(m for row in rows for m in row)])
    run.update(settings=[BASE, LL])
    return fit_run(run, model=kimi)


def test_a_faster_method_is_no_setting_and_not_the_best(tmp_path, kimi):
    fit = fitted(tmp_path, kimi, beside("symm-mem-one-shot", line(4.0, 0.4e-4)))
    assert [s.setting.name for s in fit.settings] == ["LL", "base"]
    assert fit.best == "LL"
    [one_shot] = fit.beside
    assert (one_shot.method, one_shot.label) == ("symm-mem-one-shot", "torch symmetric memory, one-shot")
    assert [p.size_bytes for p in one_shot.points] == SIZES
    # 0.4 of the base everywhere: -60% against it, and half of LL: -50% against the best.
    assert one_shot.versus_base.percent == pytest.approx(-60, abs=0.01)
    assert one_shot.versus_best.percent == pytest.approx(-50, abs=0.01)
    assert one_shot.versus_best.verdict == "faster"
    # 123 all-reduces of 1 x 14336 B: 123 x (4 + 0.57344) = 562.5 us.
    assert one_shot.forward_us["1"] == pytest.approx(562.53, abs=0.01)


def test_the_curve_of_the_base_is_its_own(tmp_path, kimi):
    """A method without variables has the id of the base: its times must not join the base's."""
    assert ONE_SHOT.id == BASE.id
    alone = fitted(tmp_path / "a", kimi)
    joined = fitted(tmp_path / "b", kimi, beside("symm-mem-one-shot", line(4.0, 0.4e-4)))
    assert [s.points for s in alone.settings] == [s.points for s in joined.settings]
    assert alone.beside == []


def test_fastest_first_then_what_lacks_sizes_then_what_is_not_there(tmp_path, kimi):
    refusal = Failure(kind="no_algorithm", message="SGLang gives messages of 229376 B to NCCL")
    windows = Setting.make({"NCCL_CUMEM_ENABLE": "1"}, "NCCL with registered windows")
    fit = fitted(
        tmp_path,
        kimi,
        unavailable("sglang-custom-v2", "sgl_kernel is not installed"),
        beside("sglang-custom-v1", line(3.0, 1e-5), SIZES[:-1]),
        beside("sglang-custom-v1", None, SIZES[-1:], status="unsupported", error=refusal),
        beside("nccl-windows", line(12.0, 1e-4), setting=windows),
        beside("symm-mem-two-shot", line(6.0, 1e-4)),
    )
    assert [b.method for b in fit.beside] == [
        "symm-mem-two-shot",
        "nccl-windows",
        "sglang-custom-v1",
        "sglang-custom-v2",
    ]
    partial, missing = fit.beside[2:]
    assert partial.usable
    assert partial.versus_best is None
    assert partial.reason == "at 224 KiB: SGLang gives messages of 229376 B to NCCL"
    assert (missing.usable, missing.points, missing.reason) == (False, [], "sgl_kernel is not installed")
    assert fit.beside[1].versus_best.verdict == "slower"


def test_wrong_sums_leave_a_method_without_a_curve(tmp_path, kimi):
    rows = beside("symm-mem-one-shot", line(4.0, 0.4e-4), SIZES[1:])
    rows += beside("symm-mem-one-shot", None, SIZES[:1], status="wrong_results", num_wrong=5)
    [one_shot] = fitted(tmp_path, kimi, rows).beside
    assert not one_shot.usable
    assert one_shot.points == []
    assert one_shot.reason == "at 14 KiB: wrong results"


def test_a_run_gives_nccl_measurements_unless_asked_for_all(tmp_path, kimi):
    fitted(tmp_path, kimi, beside("symm-mem-one-shot", line(4.0, 0.4e-4)))
    run = Run.load(tmp_path / "run")
    assert {m.method for m in run.measurements()} == {"nccl"}
    assert len(run.all_measurements()) == len(run.measurements()) + len(SIZES)


def test_a_method_that_this_version_does_not_know_keeps_its_name(tmp_path, kimi):
    [other] = fitted(tmp_path, kimi, beside("nvshmem", line(9.0, 1e-4))).beside
    assert other.label == "nvshmem"
