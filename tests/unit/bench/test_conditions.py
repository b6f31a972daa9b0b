"""What a run tells about its machine: throttled GPUs and windows of drift."""

from nccltune.bench import conditions
from nccltune.bench.drift import Drift
from nccltune.schemas.machine import GpuRecord


def gpu(index, *reasons, clock=1980):
    return GpuRecord(
        index=index,
        name="GPU",
        sm_clock_mhz=clock,
        temperature_c=40,
        power_w=300.5,
        throttle_reasons=list(reasons),
        pci_bus_id="0",
    )


def test_throttled_gpus_are_named_with_the_moment_and_the_reason():
    before, after = [gpu(0), gpu(1)], [gpu(0, "sw_power_cap", "hw_thermal"), gpu(1)]
    assert conditions.notes(before, after, []) == ["throttled at the end of the scan: GPU 0 (sw_power_cap, hw_thermal)"]
    assert conditions.notes(before, before, []) == []


def test_a_span_keeps_the_state_and_leaves_out_what_the_machine_record_has():
    span = conditions.span([gpu(0)], [gpu(0, clock=1500)], 3, 9)
    assert (span["first_order"], span["next_order"]) == (3, 9)
    state = {
        "index": 0,
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": None,
        "temperature_c": 40,
        "power_w": 300.5,
        "throttle_reasons": [],
    }
    assert span["before"] == [state]
    assert span["after"] == [{**state, "sm_clock_mhz": 1500}]


def test_windows_of_drift_are_one_line():
    drifts = [
        Drift(1024, 0.2, 9, True, since=0),
        Drift(2048, -0.4, 10, True, since=0),
        Drift(1024, 0.3, 19, True, since=11),
    ]
    [note] = conditions.notes([], [], drifts)
    assert "during cases 0-10, 11-19 (field order)" in note
    assert note.endswith("the base moved by -40.0% at 2048 B by case 10")
    [note] = conditions.notes([], [], [Drift(1024, 0.2, 10 * n, True, since=10 * n) for n in range(9)])
    assert "50-50, ... (field order)" in note


def test_without_gpus_there_is_no_state():
    assert conditions.state(()) == []
