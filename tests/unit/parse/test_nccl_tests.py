"""nccl-tests reports: every kind of file in tests/data/nccl-tests, and the same ones as launchers and people mangle them."""

import json
import re
from pathlib import Path

import pytest

from nccltune.parse.nccl_tests import parse_nccl_tests, to_json
from nccltune.parse.nccl_tests_report import is_coarse

DATA = Path(__file__).parents[2] / "data" / "nccl-tests"
TABLE = "05-8x4090-pcie-full-table.txt"


def text_of(name: str) -> str:
    return (DATA / name).read_bytes().decode()


def one(text: str):
    (run,) = parse_nccl_tests(text)
    return run


def times(run) -> dict[int, tuple[float, float]]:
    return {row.size_bytes: (row.out_of_place.time_us, row.in_place.time_us) for row in run.rows}


def test_table_of_2_0_with_an_error_column():
    run = one(text_of("01-error-col-narrow-type-info-line.txt"))
    assert len(run.rows) == 14
    assert times(run)[8192] == (10.36, 9.70)
    assert times(run)[65536] == (11.85, 12.11)
    # No device list: 9.68 / 5.53 = 1.7505 = 2 (n - 1) / n leaves 8 ranks only.
    assert (run.num_ranks, run.status, run.usable) == (8, "ok", True)
    assert run.rows[0].in_place.num_wrong == 0


def test_hashes_eaten_and_a_failed_check():
    run = one(text_of("04-hash-stripped-failed-check.txt"))
    assert (run.num_ranks, run.status, run.usable, len(run.rows)) == (2, "wrong_results", False, 1)
    row = run.rows[0]
    assert (row.usable, row.out_of_place.time_us, row.in_place.time_us) == (False, 5811.2, 5502.6)
    assert (row.out_of_place.num_wrong, row.in_place.num_wrong, row.in_place.max_error) == (0, 1, 1.0)


def test_small_deviations_of_old_tables_are_right_results():
    # A float sum may deviate by 1e-5; the table of that time printed the deviation.
    text = text_of("04-hash-stripped-failed-check.txt").replace("1e+00", "1e-06").replace("2 FAILED", "0 OK")
    assert one(text).status == "ok"


def test_full_table():
    run = one(text_of(TABLE))
    assert (len(run.rows), run.num_ranks, run.status, run.collective) == (25, 8, "ok", "all_reduce")
    assert times(run)[65536] == (53.50, 53.90)
    assert times(run)[524288] == (142.7, 137.3)
    assert times(run)[67108864] == (12711, 12308)
    row = run.rows[0]
    assert (row.count, row.dtype, row.redop, row.root) == (2, "float", "sum", -1)


def test_programs_without_mpi_are_refused():
    run = one(text_of("08-no-mpi-two-rank-zeros.txt"))
    assert [row.out_of_place.time_us for row in run.rows] == [3561.4, 3570.9]
    assert (run.num_ranks, run.status, run.error.kind, run.usable) == (1, "refused", "no_mpi", False)
    assert not any(row.usable for row in run.rows)


def test_every_result_wrong():
    run = one(text_of("09-wrong-results-g-notation.txt"))
    assert (len(run.rows), sum(row.usable for row in run.rows), run.status) == (6, 0, "wrong_results")
    assert run.rows[2].out_of_place.num_wrong == 16384
    assert run.rows[5].out_of_place.num_wrong == 8388610
    assert (run.num_out_of_bounds, run.usable) == (12, False)


def test_one_wrong_row_disqualifies_the_run_but_is_named():
    text = text_of(TABLE).replace("48.61    0.67    1.18      0", "48.61    0.67    1.18      7")
    run = one(text.replace("0 OK", "1 FAILED"))
    assert [row.size_bytes for row in run.rows if not row.usable] == [32768]
    assert (run.status, run.usable) == ("wrong_results", False)


def test_failures():
    shm = one(text_of("13-shm-too-small.txt"))
    assert (shm.rows, shm.status, shm.error.kind, shm.num_ranks) == ([], "failed", "shm_space", 4)
    missing = one(text_of("29-no-algorithm-available.txt"))
    assert (missing.rows, missing.status, missing.error.kind, missing.usable) == ([], "failed", "no_algorithm", False)
    assert "NVLS" in missing.error.message
    assert one(text_of("nccl-tests-bad-proto.txt")).error.kind == "usage"
    assert one(text_of("nccl-tests-unsupported-algo.txt")).error.kind == "no_algorithm"


def test_hang_after_init():
    run = one(text_of("14-hang-after-init.txt"))
    assert (run.rows, run.error.kind, run.num_ranks, run.usable) == ([], "hang", 2, False)
    assert "NCCL_P2P_DISABLE=1" in run.error.message
    assert any("P2P" in warning for warning in run.warnings)


def test_rows_in_pieces_are_joined():
    run = one(text_of("16-row-split-by-tuning-lines.txt"))
    assert times(run) == {4096: (77.12, 75.02), 8192: (79.88, 79.31), 16384: (84.61, 83.90)}
    assert {(c.size_bytes, c.algo, c.proto, c.predicted_us) for c in run.choices} == {
        (4096, "Tree", "LL", 25.874907),
        (8192, "Tree", "LL", 26.549810),
    }


def test_pieces_that_do_not_agree_are_not_joined():
    # 8192 B in 77.12 us would be 0.11 GB/s, not 0.50.
    text = text_of("16-row-split-by-tuning-lines.txt").replace("79.88    0.10", "79.88    0.50")
    run = one(text)
    assert set(times(run)) == {4096, 16384}
    assert run.broken_sizes == [8192]
    assert any("8192" in warning for warning in run.warnings)


def test_real_log_with_rows_inside():
    run = one((DATA.parent / "nccl-log" / "nccl-debug-ll.txt").read_text())
    assert times(run) == {14336: (16.08, 13.74), 114688: (13.28, 14.70)}
    assert (run.nccl_version, run.num_ranks, run.graph_launches) == ("2.28.9", 2, 2)
    assert run.settings_in_force == {"NCCL_NVLS_ENABLE": "0", "NCCL_PROTO": "LL"}


def test_times_with_two_digits_are_flagged():
    run = one(text_of("17-v220-header-e-notation-time.txt"))
    assert (len(run.rows), run.num_ranks, run.collective) == (8, 2, "all_reduce")
    assert times(run)[524288] == (152.73, 149.08)
    assert times(run)[17179869184] == (1.2e7, 1.2e7)
    assert [row.size_bytes for row in run.rows if row.out_of_place.is_coarse] == [17179869184]
    assert run.to_json()["rows"][-1]["out_of_place"]["low_precision"] is True
    assert "low_precision" not in run.to_json()["rows"][0]["out_of_place"]
    assert any("17179869184" in warning for warning in run.warnings)


@pytest.mark.parametrize(
    ("printed", "coarse"), [("1.2e+07", True), ("9.70", False), ("12711", False), ("1.25e+07", False)]
)
def test_precision_of_printed_numbers(printed, coarse):
    # 1.2e+07: half a digit is 0.05 / 1.2 = 4%; 1.25e+07: 0.005 / 1.25 = 0.4%.
    assert is_coarse(printed) is coarse


def test_crlf_and_byte_order_mark():
    run = one(text_of("20-crlf-bom.txt"))
    assert (len(run.rows), run.num_ranks, times(run)[64]) == (5, 8, (41.39, 41.07))


def test_refused_threads_are_not_in_force():
    run = one(text_of("28-nthreads-rejected-but-runs.txt"))
    assert (run.status, times(run)[32768]) == ("ok", (25.93, 25.61))
    assert "NCCL_NTHREADS" not in run.settings_in_force
    assert run.to_json()["settings_rejected"]["NCCL_NTHREADS"]["requested"] == "500"
    assert any("do not credit" in warning for warning in run.warnings)


def test_per_iteration_columns():
    run = one(text_of("31-per-iteration-21-fields.txt"))
    assert (len(run.rows), run.num_ranks, times(run)[16384]) == (3, 2, (15.61, 15.33))


def test_per_iteration_rows_without_a_heading():
    text = "\n".join(line for line in text_of("31-per-iteration-21-fields.txt").split("\n") if "i_min" not in line)
    assert times(one(text))[16384] == (15.61, 15.33)


def test_two_runs_in_one_file():
    first, second = parse_nccl_tests(text_of("34-two-runs-one-file.txt"))
    assert (len(first.rows), len(second.rows)) == (3, 3)
    assert (times(first)[65536][0], first.settings_in_force) == (33.10, {"NCCL_PROTO": "LL"})
    assert (times(second)[65536][0], second.settings_in_force) == (61.40, {"NCCL_PROTO": "Simple"})
    assert any("not confirmed" in warning for warning in first.warnings)


@pytest.mark.parametrize("first", ["29-no-algorithm-available.txt", "nccl-tests-bad-proto.txt"])
def test_a_failed_run_before_a_good_one(first):
    failed, good = parse_nccl_tests(text_of(first) + text_of(TABLE))
    assert (failed.status, good.status, len(good.rows)) == ("failed", "ok", 25)


def test_continued_command_line_with_launcher_variables():
    command = "$ mpirun -np 8 -x NCCL_ALGO=Ring \\\n    -x NCCL_TESTS_DEVICE=0 ./build/all_reduce_perf -b 8 -e 128M\n"
    run = one(command + text_of(TABLE))
    assert (run.settings_in_force, run.collective) == ({"NCCL_ALGO": "Ring"}, "all_reduce")


@pytest.mark.parametrize(
    "prefix",
    [
        "[1,0]<stdout>:", "0: ", " 0: ", "[0] ", "[rank0]: ", "> ", "\t", "node-1: ", "worker-1  | ", "[job-worker-0]: ",
        "2025-05-06T11:22:33.123456Z ", "2025-05-06 11:22:33 ", "[2025-05-06 11:22:33] ", "2025-05-06T11:22:33.1Z stdout F ",
    ],
)  # fmt: skip
def test_prefixes_of_launchers(prefix):
    run = one("\n".join(prefix + line for line in text_of(TABLE).split("\n")))
    assert (len(run.rows), run.num_ranks, run.status) == (25, 8, "ok")
    assert times(run)[65536] == (53.50, 53.90)


def test_time_stamps_behind_rows_and_terminal_colours():
    lines = text_of(TABLE).split("\n")
    stamped = [f"{line}  2025-05-06 11:22:33" if re.match(r"\s+\d", line) else line for line in lines]
    assert times(one("\n".join(stamped)))[65536] == (53.50, 53.90)
    coloured = "\n".join(f"\x1b[32m{line}\x1b[0m" for line in lines)
    assert times(one(coloured))[65536] == (53.50, 53.90)


def test_markdown_table():
    lines = [
        f"| {' | '.join(line.split())} |" if re.match(r"\s+\d", line) else line for line in text_of(TABLE).split("\n")
    ]
    assert len(one("\n".join(lines)).rows) == 25


def test_unchecked_results_are_unknown_not_right():
    run = one(re.sub(r"      0(?=\s|$)", "    N/A", text_of(TABLE)))
    assert {timing.num_wrong for row in run.rows for timing in row.timings} == {None}
    assert any("not checked" in warning for warning in run.warnings)
    assert run.usable


def test_cut_files():
    lines = text_of(TABLE).split("\n")
    cut = one("\n".join(lines[:20]) + "\n       65536         16384     float     sum      -1    53.50    1.")
    assert (cut.status, len(cut.rows), cut.usable) == ("incomplete", 5, True)
    hung = one("\n".join(lines[:20]) + "\n       65536         16384     float     sum      -1^C\n")
    assert (hung.status, hung.error.kind, len(hung.rows)) == ("incomplete", "hang", 5)
    assert "65536" in hung.error.message


def test_rows_alone():
    text = "\n".join(line for line in text_of(TABLE).split("\n") if not line.startswith("#"))
    run = one(text)
    assert (len(run.rows), run.num_ranks, run.status) == (25, 8, "incomplete")


@pytest.mark.parametrize(
    ("row", "collective"),
    [
        # 1048576 B = 8 ranks x 32768 elements x 4 B: what the ranks share is no all_reduce.
        ("1048576  32768 float none -1 45.30 23.15 20.25 0 44.90 23.35 20.43 0", "all_gather"),
        ("1048576  32768 float  sum -1 45.30 23.15 20.25 0 44.90 23.35 20.43 0", "reduce_scatter"),
        ("1048576 262144 float none  0 45.30 23.15 23.15 0 44.90 23.35 23.35 0", "broadcast"),
        ("1048576 262144 float  sum  0 45.30 23.15 23.15 0 44.90 23.35 23.35 0", "reduce"),
        ("1048576 262144 float none -1 45.30 23.15 23.15 0 44.90 23.35 23.35 N/A", "sendrecv"),
    ],
)
def test_other_collectives_are_refused(row, collective):
    heading = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
    run = one(f"{heading} {row}\n# Out of bounds values : 0 OK\n# Avg bus bandwidth : 20\n")
    assert (run.collective, run.status, run.error.kind, run.usable) == (
        collective,
        "refused",
        "other_collective",
        False,
    )


def test_cpu_time_and_unknown_layouts_are_refused():
    cpu = one(text_of(TABLE).replace("time   algbw", "cputime   algbw"))
    assert (cpu.error.kind, cpu.usable) == ("layout", False)
    old = "#  bytes N type op time algbw busbw res time algbw busbw res\n 100000 25000 float sum 0.148 67.5 67.5 0e+00 0.147 68 68 0e+00\n"
    assert one(old).error.kind == "layout"


def test_digits_of_a_host_name_glued_to_a_count():
    host = "Rank  0 Group  0 Pid  1 on  5gpu device  0 [0x16] X\n"
    row = "  4096  1024  float  sum  -1  77.12  0.05  0.10  05gpu:1:1 [0] NCCL INFO noise\n  75.02  0.05  0.10  0\n"
    run = one(f"# {host}#  size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n{row}")
    assert [t.num_wrong for t in run.rows[0].timings] == [0, 0]
    assert times(run) == {4096: (77.12, 75.02)}


def test_json_report_without_check():
    run = one(text_of("23-json-output-nwrong-null.txt"))
    assert (len(run.rows), times(run)[65536], run.num_ranks) == (3, (24.88, 24.55), 8)
    assert (run.rows[0].dtype, run.rows[0].out_of_place.num_wrong, run.error) == ("bfloat16", None, None)
    assert run.settings_in_force == {"NCCL_PROTO": "LL", "NCCL_MIN_NCHANNELS": "8"}
    document = json.dumps(to_json([run]))
    assert "hf_example" not in document
    assert "HF_TOKEN" not in document


def test_real_json_report():
    run = one(text_of("nccl-tests-ll-ring.json"))
    assert times(run) == {14336: (7.401589, 7.475539), 114688: (7.152155, 7.154645), 917504: (12.601623, 12.656723)}
    assert (run.num_ranks, run.nccl_version, run.graph_launches, run.status) == (2, "2.28.9", 30, "ok")
    assert "NCCL_VERSION" not in run.settings_in_force


def test_failed_and_cut_json_reports():
    document = json.loads(text_of("nccl-tests-ll-ring.json"))
    del document["out_of_bounds"], document["average_bus_bandwidth"]
    failed = one(json.dumps(document))
    assert (failed.status, failed.error.kind, len(failed.rows)) == ("failed", "nccl", 3)
    document["errors"] = ["Test CUDA failure common.cu:1 'out of memory'"]
    assert one(json.dumps(document)).error.kind == "out_of_memory"
    cut = one(text_of("nccl-tests-ll-ring.json")[:1700])
    assert (cut.status, [row.size_bytes for row in cut.rows], cut.usable) == ("incomplete", [14336, 114688], True)


def test_json_with_nan_wrong_and_several_documents():
    document = json.loads(text_of("nccl-tests-ll-ring.json"))
    document["results"][0]["in_place"]["time"] = "nan"
    document["results"][1]["in_place"]["nwrong"] = 5.0
    first, second = parse_nccl_tests(json.dumps(document) + "\n" + text_of("nccl-tests-default.json"))
    assert [row.usable for row in first.rows] == [False, False, True]
    assert (first.status, second.status) == ("wrong_results", "ok")
    json.dumps(to_json([first]), allow_nan=False)


@pytest.mark.parametrize("text", ["", "hello\n", "{}", "[1, 2]", '{"config": 1}', "{", "\x00\x01\n8 2 float\n"])
def test_nothing_to_read_is_no_run(text):
    assert parse_nccl_tests(text) == []


def test_json_fields():
    run = to_json(parse_nccl_tests(text_of(TABLE)))["runs"][0]
    assert set(run) >= {
        "collective", "num_ranks", "status", "error", "usable", "settings_in_force", "settings_rejected", "rows", "warnings",
    }  # fmt: skip
    assert run["rows"][10] == {
        "size_bytes": 8192, "count": 2048, "dtype": "float", "redop": "sum",
        "out_of_place": {"time_us": 44.62, "algbw_gb_s": 0.18, "busbw_gb_s": 0.32, "num_wrong": 0},
        "in_place": {"time_us": 42.77, "algbw_gb_s": 0.19, "busbw_gb_s": 0.34, "num_wrong": 0}, "usable": True,
    }  # fmt: skip


@pytest.mark.parametrize("word", ["NaN", "nan", "-nan", "inf"])
def test_a_time_in_json_that_is_no_number_leaves_the_other_rows(word):
    """printf's nan is no JSON in any spelling, and no sign of a report that was cut."""
    text = (DATA / "23-json-output-nwrong-null.txt").read_text().replace('"time":24.880000', f'"time":{word}')
    (found,) = parse_nccl_tests(text)
    assert [row.usable for row in found.rows] == [True, False, True]
    assert found.status == "ok"
    assert "the row of 65536 bytes has no usable time" in found.warnings
