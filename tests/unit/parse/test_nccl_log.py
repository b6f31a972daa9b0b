"""NCCL debug logs: real ones (tests/data/nccl-log) and the line shapes of other versions."""

import time
from pathlib import Path

import pytest

from nccltune.parse.nccl_errors import classify_nccl_error
from nccltune.parse.nccl_log import choices_after, parse_nccl_log
from nccltune.parse.nccl_table import predicted_us

DATA = Path(__file__).parents[2] / "data"
INFO = "vm:753:764 [0] NCCL INFO "


def read(name: str) -> str:
    return (DATA / "nccl-log" / name).read_text()


def log_of(*lines: str):
    return parse_nccl_log("".join(f"{INFO}{line}\n" for line in lines))


def test_settings_echoed_by_two_ranks():
    log = parse_nccl_log(read("01-env-echo-and-channels.txt"))
    assert log.settings_in_force == {"NCCL_PROTO": "LL", "NCCL_ALGO": "RING"}
    assert (log.num_channels, log.rejected, log.warnings) == (2, [], [])


def test_min_channels_ignored_in_words():
    log = parse_nccl_log(read("04-min-nchannels-ignored.txt"))
    (rejected,) = log.rejected
    assert (rejected.variable, rejected.requested, rejected.in_force) == ("NCCL_MIN_NCHANNELS", "112", "48")
    assert "ignored due to less than 8 GPUs" in rejected.message
    assert (log.settings_in_force, log.num_channels, log.num_ranks) == ({}, 48, 4)


def test_cost_table_in_one_block():
    table = parse_nccl_log(read("05-tuning-table.txt")).model_table
    ring = table["AllReduce"]["Ring"]
    assert ring["LL"] == {"latency_us": 5.5, "bandwidth_gb_s": 3.0}
    assert ring["LL128"] == {"latency_us": 8.8, "bandwidth_gb_s": 11.2}
    assert ring["Simple"] == {"latency_us": 21.7, "bandwidth_gb_s": 12.0}
    assert table["AllReduce"]["Tree"]["Simple"] == {"latency_us": 100.4, "bandwidth_gb_s": 10.8}
    assert table["Broadcast"]["Tree"]["LL"] == {"latency_us": 0.0, "bandwidth_gb_s": 0.0}
    # 5.5 us + 30000 B / (1000 x 3.0 GB/s) = 15.5 us; Broadcast by Tree is off.
    assert predicted_us(table, "Ring", "LL", 30000) == pytest.approx(15.5)
    assert predicted_us(table, "Tree", "LL", 30000, "Broadcast") is None
    assert predicted_us(table, "NVLS", "Simple", 30000) is None


def test_real_log_of_2_28():
    log = parse_nccl_log(read("nccl-debug-ll.txt"))
    assert (log.nccl_version, log.num_ranks, log.num_channels) == ("2.28.9", 2, 24)
    assert log.settings_in_force == {"NCCL_NVLS_ENABLE": "0", "NCCL_PROTO": "LL"}
    # 24 channels, one connection each way.
    assert log.transports == {"P2P": 48, "SHM": 0, "NET": 0}
    found = {c.size_bytes: (c.collective, c.algo, c.proto, c.num_channels) for c in log.choices}
    assert found == {
        14336: ("AllReduce", "Ring", "LL", 1),
        28672: ("AllReduce", "Ring", "LL", 3),
        57344: ("AllReduce", "Ring", "LL", 7),
        114688: ("AllReduce", "Ring", "LL", 14),
    }
    # Blocks of three algorithms: Tree 8.0/61.1, Ring 7.8/141.0 for LL; PAT is in the last block.
    assert log.model_table["AllReduce"]["Tree"]["LL"] == {"latency_us": 8.0, "bandwidth_gb_s": 61.1}
    assert log.model_table["AllReduce"]["Ring"]["LL"] == {"latency_us": 7.8, "bandwidth_gb_s": 141.0}
    assert log.model_table["AllReduce"]["CollNetChain"]["Simple"]["latency_us"] == 35.6
    assert set(log.model_table["AllReduce"]) == {
        "Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"
    }  # fmt: skip
    assert log.max_threads["Ring"] == {"LL": 512, "LL128": 640, "Simple": 512}
    assert log.error is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("4096 Bytes -> Algo 0 proto 0 time 25.874907", ("", 4096, "Tree", "LL", None, 25.874907)),
        ("AllReduce: 4096 Bytes -> Algo 1 proto 2 time 9.5", ("AllReduce", 4096, "Ring", "Simple", None, 9.5)),
        (
            "AllReduce: 8 Bytes -> Algo NVLS_TREE proto SIMPLE channel{Lo..Hi}={4..7}",
            ("AllReduce", 8, "NVLSTree", "Simple", 4, None),
        ),
        (
            "AllGather: 64 Bytes -> Algo COLLNET_DIRECT proto LL128 channel{Lo..Hi}={0..0}",
            ("AllGather", 64, "CollNetDirect", "LL128", 1, None),
        ),
    ],
)
def test_choice_of_each_version(line, expected):
    (c,) = choices_after(INFO + line + "\n")
    assert (c.collective, c.size_bytes, c.algo, c.proto, c.num_channels, c.predicted_us) == expected


def test_symmetric_kernel():
    line = "AllReduce [Symmetric]: 14336 Bytes -> Kernel AllReduce_AGxLL_R nchannels 8 nthreads 512 nWorks 1"
    (c,) = choices_after(INFO + line)
    assert (c.symmetric_kernel, c.num_channels, c.num_threads, c.algo) == ("AllReduce_AGxLL_R", 8, 512, None)
    assert c.to_json()["symmetric_kernel"] == "AllReduce_AGxLL_R"


def test_a_chunk_of_a_growing_log_keeps_repeats_and_drops_a_half_line():
    line = f"{INFO}AllReduce: 8 Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..2}}\n"
    assert len(choices_after(line * 3)) == 3
    assert choices_after(line[:40]) == []


@pytest.mark.parametrize(
    ("lines", "variable", "in_force"),
    [
        (
            ["NCCL_NTHREADS set by environment to 500.", "Invalid NCCL_NTHREADS 500 (must be a multiple of 32)"],
            "NCCL_NTHREADS",
            "512",
        ),
        (["NCCL_NTHREADS set by environment to 1024.", "Invalid NCCL_NTHREADS 1024 (maximum 512)."], "NCCL_NTHREADS", "512"),
        (["NCCL_NTHREADS set by environment to 32.", "Invalid NCCL_NTHREADS 32 (minimum 64)."], "NCCL_NTHREADS", "64"),
        (["Invalid value abc for NCCL_BUFFSIZE, using default -2."], "NCCL_BUFFSIZE", "-2"),
        (
            ["NCCL_MIN_NCHANNELS set by environment to 128.", "User asked for a minimum of 128 channels, limiting to 64"],
            "NCCL_MIN_NCHANNELS",
            "64",
        ),
        (
            ["NCCL_MIN_NCHANNELS set by environment to 33.",
             "NCCL_MIN_NCHANNELS set by environment is ignored due to greater than max allowed 32 channels.",
             "16 coll channels, 0 nvls channels"],
            "NCCL_MIN_NCHANNELS",
            "16",
        ),
        # Clamped without a word: the channel count tells.
        (["NCCL_MAX_NCHANNELS set by environment to 4.", "24 coll channels, 0 nvls channels"], "NCCL_MAX_NCHANNELS", "24"),
        (["NCCL_CGA_CLUSTER_SIZE set by environment to 32.", "NCCL_CGA_CLUSTER_SIZE value 32 is too big. Limiting value to 8."],
         "NCCL_CGA_CLUSTER_SIZE", "8"),
    ],
)  # fmt: skip
def test_rejections(lines, variable, in_force):
    log = log_of(*lines)
    (rejected,) = log.rejected
    assert (rejected.variable, rejected.in_force) == (variable, in_force)
    assert variable not in log.settings_in_force
    assert variable in log.to_json()["settings_rejected"]


def test_bounds_that_hold_are_no_rejection():
    log = log_of(
        "NCCL_MIN_NCHANNELS set by environment to 8.",
        "NCCL_MAX_NCHANNELS set by environment to 8.",
        "8 coll channels, 0 nvls",
    )
    assert log.rejected == []
    assert log.settings_in_force == {"NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "8"}


def test_a_warning_about_a_variable_nobody_set_is_no_rejection():
    log = log_of("NCCL_DMABUF_ENABLE is not supported on this kernel, ignoring")
    assert log.rejected == []


def test_ranks_that_differ_and_transports():
    log = log_of(
        "NCCL_PROTO set by environment to LL",
        "NCCL_PROTO set by environment to Simple",
        "Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct",
        "Channel 00 : 1[2000] -> 0[1000] via direct shared memory",
        "Channel 00/0 : 3[3] -> 4[0] [send] via NET/IB/0/GDRDMA",
        "Ring 00 : 0[0] -> 1[1] via P2P/direct pointer",
    )
    assert log.transports == {"P2P": 1, "SHM": 2, "NET": 1}
    assert "ranks or communicators differ" in log.warnings[0]


def test_a_log_without_connections_tells_no_transports():
    log = log_of("AllReduce: 28672 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..2}")
    assert log.choices
    assert log.to_json()["transports"] == {}


def test_json_is_complete():
    document = parse_nccl_log(read("nccl-debug-ll.txt")).to_json()
    assert set(document) >= {
        "kind", "nccl_version", "settings_in_force", "settings_rejected", "channels", "num_ranks", "transports", "choices",
        "model_table", "error", "warnings",
    }  # fmt: skip
    assert document["choices"][1] == {
        "collective": "AllReduce", "size_bytes": 28672, "algo": "Ring", "proto": "LL", "channels": 3
    }  # fmt: skip


def test_empty_text_and_crlf():
    assert parse_nccl_log("").is_empty
    assert parse_nccl_log("hello\n").is_empty
    log = parse_nccl_log(read("01-env-echo-and-channels.txt").replace("\n", "\r\n"))
    assert log.settings_in_force["NCCL_ALGO"] == "RING"


def test_a_long_log_is_quick():
    line = f"{INFO}AllReduce: 8 Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..2}}\n"
    started = time.perf_counter()
    assert len(choices_after(line * 100_000)) == 100_000
    assert time.perf_counter() - started < 2.0


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("node-1: Test CUDA failure common.cu:891 'out of memory'", "out_of_memory"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "out_of_memory"),
        ("h:1:2 [0] x.cc:3 NCCL WARN Cuda failure 719 'unspecified launch failure'", "cuda"),
        ("n: Test NCCL failure common.cu:777 'unhandled cuda error (run with NCCL_DEBUG=INFO for details) / '", "cuda"),
        ("n: Test NCCL failure common.cu:777 'unhandled system error'", "nccl"),
        ("h:1:2 [0] enqueue.cc:2 NCCL WARN No algorithm/protocol available for function AllReduce", "no_algorithm"),
        ("h:1:2 [0] enqueue.cc:2 NCCL WARN Error : no algorithm/protocol available", "no_algorithm"),
        ("h:1:2 [1] shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device", "shm_space"),
        ("node: Test timeout (30s) common.cu:12", "timeout"),
        ("slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2025 DUE TO TIME LIMIT ***", "timeout"),
        ("all_reduce_perf: invalid option -- 'J'", "usage"),
        ("Bus error (core dumped)", "crash"),
        ("Decode out of memory happened. #retracted_reqs: 1", None),
        ("h:1:2 [0] graph/tuning.cc:23 NCCL WARN Invalid NCCL_NTHREADS 500 (must be a multiple of 32)", None),
        ("# Out of bounds values : 0 OK", None),
        ("", None),
    ],
)
def test_kinds_of_failure(text, kind):
    failure = classify_nccl_error(text)
    assert (failure.kind if failure else None) == kind


def test_real_failures_of_2_28():
    bad = classify_nccl_error((DATA / "nccl-tests" / "nccl-tests-bad-proto.txt").read_text())
    assert bad.kind == "usage"
    assert "communicator init" in bad.message
    unsupported = classify_nccl_error((DATA / "nccl-tests" / "nccl-tests-unsupported-algo.txt").read_text())
    assert unsupported.kind == "no_algorithm"
    assert "common.cu:619" in unsupported.message


def test_shared_memory_message_says_how_much_and_what_to_do():
    failure = classify_nccl_error((DATA / "nccl-tests" / "13-shm-too-small.txt").read_text())
    assert failure.kind == "shm_space"
    assert "9637888" in failure.message
    assert "--shm-size" in failure.message
