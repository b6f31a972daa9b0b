"""When nothing is written, and what is said when something is."""

import pytest
from emit_runs import SET, curve, make_machine

from nccltune import api
from nccltune.emit.gain import compare
from nccltune.emit.safety import (
    LL128_MIN_CHECKS,
    decode_notes,
    engine_notes,
    ll128_by_default,
    ll128_notes,
    name_notes,
    prefill_notes,
    version_notes,
)
from nccltune.engine_path import EngineOptions, engine_allreduce_path
from nccltune.errors import QualityError
from nccltune.schemas.measurement import Measurement
from nccltune.schemas.setting import Setting

LL128 = {"NCCL_PROTO": "LL128"}


def measurement(num_rounds, wrong=0, env=None):
    """A measurement of 1000 elements whose data was checked ``num_rounds`` times."""
    return Measurement(
        case_id=f"c{num_rounds}{wrong}", setting=Setting.make(env or LL128), size_bytes=2000, count=1000, timing="in-forward", num_ranks=8, dtype="bfloat16",
        base="sglang", backend="nccl", status="wrong_results" if wrong else "ok", samples_us=[] if wrong else [1.0], num_wrong=wrong,
        num_checked=1000 * num_rounds,
    )  # fmt: skip


def test_ll128_on_pcie_needs_many_clean_checks():
    pcie = make_machine(link="PHB")
    assert [n.hard for n in ll128_notes(LL128, pcie, [])] == [True]
    assert [n.hard for n in ll128_notes(LL128, pcie, [measurement(LL128_MIN_CHECKS - 1)])] == [True]
    assert [n.hard for n in ll128_notes(LL128, pcie, [measurement(LL128_MIN_CHECKS)])] == [False]
    half = [measurement(LL128_MIN_CHECKS // 2), measurement(LL128_MIN_CHECKS // 2)]
    assert [n.hard for n in ll128_notes(LL128, pcie, half)] == [False]
    assert [n.hard for n in ll128_notes(LL128, pcie, [measurement(10**6), measurement(5, wrong=1)])] == [True]
    assert [n.hard for n in ll128_notes(LL128, pcie, [measurement(10**6, env=SET)])] == [
        True
    ]  # another setting's checks


def test_ll128_is_nccls_own_choice_on_nvlink_and_other_protocols_are_free():
    assert ll128_notes(LL128, make_machine(link="NV18"), []) == []
    assert ll128_notes({"NCCL_PROTO": "LL"}, make_machine(link="PHB"), []) == []
    assert ll128_notes({"NCCL_PROTO": "^LL128"}, make_machine(link="PHB"), []) == []
    assert not ll128_by_default(None)
    assert [n.hard for n in ll128_notes(LL128, None, [])] == [True]


def test_prefill_cost():
    loss = compare(curve((100, 100, 100)), curve((149, 149, 149)))
    small = compare(curve((100, 100, 100)), curve((105, 105, 105)))
    assert [n.hard for n in prefill_notes(loss, 10, accepted=False)] == [True]
    assert [n.hard for n in prefill_notes(loss, 10, accepted=True)] == [False]
    assert prefill_notes(small, 10, accepted=False) == []
    assert prefill_notes(loss, 60, accepted=False) == []
    assert [n.code for n in prefill_notes(None, 10, accepted=False)] == ["prefill-unknown"]


def test_engine_path_and_version():
    nvlink = engine_allreduce_path("nvlink", 8)
    assert "custom" in engine_notes(nvlink)[0].text
    assert not engine_notes(nvlink)[0].hard
    assert engine_notes(engine_allreduce_path("pcie", 8)) == []
    assert engine_notes(engine_allreduce_path("nvlink", 8, options=EngineOptions(disable_custom_all_reduce=True))) == []
    assert engine_notes(None) == []
    assert version_notes((2, 28, 9), (2, 28, 9)) == []
    assert version_notes((2, 28, 9), None) == []
    assert "2.31.2" in version_notes((2, 28, 9), (2, 31, 2))[0].text


@pytest.mark.parametrize("num_gpus", [1, 2])
def test_one_gpu_has_no_links(num_gpus):
    assert ll128_by_default(make_machine(link="NV18", num_gpus=num_gpus)) == (num_gpus > 1)


@pytest.mark.parametrize("off", [{"NCCL_P2P_DISABLE": "1"}, {"NCCL_P2P_LEVEL": "LOC"}])
def test_nvlink_that_is_not_used_does_not_enable_ll128(off):
    machine = make_machine(link="NV18")
    assert ll128_by_default(machine, {"NCCL_P2P_DISABLE": "0"})
    assert not ll128_by_default(machine, off)
    assert [n.hard for n in ll128_notes(LL128, machine, [], off)] == [True]


def test_slower_decode_and_misspelt_names_are_told():
    # 20 -> 30 us is 50% slower at every size
    loss = compare(curve((20, 20, 20)), curve((30, 30, 30)))
    assert "50.0% slower" in decode_notes(loss)[0].text
    assert decode_notes(compare(curve((20, 20, 20)), curve((20, 20, 20)))) == decode_notes(None) == []
    assert [n.do for n in name_notes({"NCCL_PRTO": "LL", "NCCL_PROTO": "LL"})] == ["did you mean NCCL_PROTO?"]


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"NCCL_NTHREADS": "500"}, "not a multiple of 32"),
        ({"NCCL_BUFFSIZE": "4M"}, "it takes this for 4"),
        ({"NCCL_MIN_NCHANNELS": "9", "NCCL_MAX_NCHANNELS": "3"}, "they cannot both hold"),
        ({"NCCL_MAX_NCHANNELS": "128"}, "it is clamped"),
    ],
)
def test_a_value_that_check_would_reject_is_not_written(env, words):
    setting = ";".join(f"{name}={value}" for name, value in env.items())
    with pytest.raises(QualityError) as caught:
        api.emit(setting=setting)
    assert words in str(caught.value)
    assert words in " ".join(api.emit(setting=setting, force=True).document.warnings)
