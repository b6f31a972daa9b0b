"""Rules per size for a tuner plugin: no size and no collective without a row, explicit channels, no invented choice."""

import csv

import pytest
from emit_runs import DECODE, PREFILL, choice, entry, make_fit, tuned_fit

from nccltune.emit import tuner_csv
from nccltune.emit.document import Document, Rule
from nccltune.emit.policy import rules
from nccltune.errors import InputError, NoBasisError


def first_match(found, collective, size, num_ranks=8):
    """What the example plugin does: the first row that fits."""
    for rule in found:
        if (
            rule.collective == collective
            and rule.min_bytes <= size <= rule.max_bytes
            and rule.num_ranks in (-1, num_ranks)
        ):
            return rule.algo, rule.proto, rule.num_channels
    return None


def test_measured_sizes_get_their_best_choice():
    found, notes = rules(tuned_fit())
    assert [first_match(found, "allreduce", s) for s in DECODE] == [
        ("Ring", "LL", 1),
        ("Ring", "LL", 3),
        ("Ring", "LL", 14),
    ]
    # at the prefill size base and tuned are equal: NCCL's own choice, the base's
    assert first_match(found, "allreduce", PREFILL) == ("Ring", "Simple", 24)
    assert "not measured" in notes[0]


def test_no_collective_and_no_size_is_left_to_one_channel():
    found, _ = rules(tuned_fit())
    for collective in tuner_csv.COLLECTIVES:
        for size in (0, 1, 14335, 28000, 229377, 2**31, 2**40):
            for num_ranks in (2, 8):
                algo, proto, channels = first_match(found, collective, size, num_ranks)
                assert channels >= 1
                assert (algo, proto) in {("Ring", "LL"), ("Ring", "Simple")}


def test_boundaries_are_geometric_means():
    # sqrt(14336 x 43008) = 24830.7
    found, _ = rules(tuned_fit())
    assert (found[0].max_bytes, found[1].min_bytes) == (24830, 24831)


def test_above_the_largest_measured_size_low_latency_protocols_are_not_extended():
    ll = {s: choice("Ring", "LL", 4) for s in DECODE}
    found, notes = rules(make_fit([entry({}, (20, 20, 40), choices=ll)]))
    assert first_match(found, "allreduce", DECODE[-1]) == ("Ring", "LL", 4)
    assert first_match(found, "allreduce", DECODE[-1] + 1) == ("Ring", "Simple", 4)
    assert str(DECODE[-1]) in notes[0]


def test_without_known_choices_there_are_no_rules():
    with pytest.raises(NoBasisError, match="no tuner rules"):
        rules(make_fit([entry({}, (20, 20, 40))]))


def test_csv_is_what_the_plugin_reads():
    found, notes = rules(tuned_fit())
    text = tuner_csv.write(Document(rules=tuple(found), header=("x " * 300,), warnings=tuple(notes)))
    assert all(len(line) <= 255 for line in text.splitlines())
    rows = [row for row in csv.reader(line for line in text.splitlines() if not line.startswith("#"))]
    assert all(len(row) == 8 and int(row[5]) >= 1 for row in rows)
    assert rows[0] == ["allreduce", "0", "24830", "ring", "ll", "1", "1", "8"]
    assert tuner_csv.parse(text)["allreduce[0-24830]@1/8"] == "ring/ll/1"
    assert [f for f in tuner_csv.read(text).findings if f.level == "problem"] == []


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ("allreduce,0,100,ring,ll,-1,1,8", "channels"),
        ("AllReduce,0,100,ring,ll,4,1,8", "unknown-name"),
        ("allreduce,0,100,Ring,ll,4,1,8", "unknown-name"),
        ("allreduce,0,100,ring,LL,4,1,8", "unknown-name"),
        ("allreduce,0,64K,ring,ll,4,1,8", "not-a-number"),
        ("allreduce,100,0,ring,ll,4,1,8", "empty-range"),
        ("allreduce,0,100,ring,ll", "dropped"),
        ("collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks", "unknown-name"),
    ],
)
def test_traps_of_the_example_plugin_are_found(row, code):
    assert code in [f.code for f in tuner_csv.read(row + "\n").findings]


def test_missing_catch_all_is_found():
    reading = tuner_csv.read("allreduce,0,100,ring,ll,4,1,8\n")
    assert sum(f.code == "no-catch-all" for f in reading.findings) == 5


@pytest.mark.parametrize(
    "rule",
    [
        Rule("allreduce", 0, 1, "Star", "LL", 1, 8),
        Rule("alltoall", 0, 1, "Ring", "LL", 1, 8),
        Rule("allreduce", 0, 1, "Ring", "LL", 0, 8),
    ],
)
def test_rows_that_the_plugin_would_misread_are_refused(rule):
    with pytest.raises(InputError):
        tuner_csv.row(rule)
