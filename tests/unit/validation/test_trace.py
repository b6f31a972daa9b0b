"""Synthetic traces whose right answer is known, in the forms that torch's profiler and Nsight Systems write."""

import gzip
import json

import pytest
from emit_runs import entry, make_fit, make_machine, make_run

from nccltune import api
from nccltune.errors import InputError, QualityError
from nccltune.validation.kernels import classify
from nccltune.validation.trace import gate

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
CUSTOM = "void (anonymous namespace)::all_reduce_one_shot_push_kernel<__nv_bfloat16, 2u, true>((anonymous namespace)::AllReducePushData)"
FUSED = "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<2, __nv_bfloat16, 2>(params)"


class Builder:
    """Writes kernels one after the other, 0.5 us apart."""

    def __init__(self, start=1000.0):
        self.now, self.events, self.correlation = start, [], 0

    def kernel(self, name, dur, correlation=None, device=0, grid=4):
        if correlation is None:
            self.correlation += 1
        args = {"device": device, "stream": 7, "correlation": correlation or self.correlation, "grid": [grid, 1, 1]}
        self.events.append({"ph": "X", "cat": "kernel", "name": name, "ts": self.now, "dur": dur, "pid": device, "tid": 7, "args": args})  # fmt: skip
        self.now += dur + 0.5

    def forward(self, num, *, graph=True, us=8.0, name=NCCL, gather=True, device=0, gemm="gemm"):
        self.correlation += 1
        shared = self.correlation if graph else None
        if graph:
            self.events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": self.now, "dur": 2, "pid": 9, "tid": 9,
                                "args": {"correlation": shared}})  # fmt: skip
        for _ in range(num):
            self.kernel(gemm, 5.0, shared, device)
            self.kernel(name, us, shared, device)
        if gather:
            self.kernel(GATHER, 12.0, shared, device)

    def write(self, path, *, packed=False, bare=False):
        text = json.dumps(self.events if bare else {"schemaVersion": 1, "traceEvents": self.events})
        path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
        return path


def cycles(num=5, **target):
    """Draft graph with 3 all-reduces, verify with 97, draft-extend with 3, then 100 us without kernels."""
    b = Builder()
    for _ in range(num):
        b.forward(3, us=7.0)
        b.forward(97, **target)
        b.forward(3, us=7.0)
        b.now += 100
    return b


@pytest.mark.parametrize(("packed", "bare"), [(False, False), (True, False), (False, True)])
def test_graph_launches_delimit_the_forwards(tmp_path, packed, bare):
    found = api.validate_trace(cycles().write(tmp_path / "t.json", packed=packed, bare=bare), model="qwen3-30b-a3b")
    target = found.target
    assert "graph" in found.delimited_by
    assert (target.num_forwards, target.allreduces_per_forward, target.allgathers_per_forward) == (5, 97, 1)
    assert (found.expected_allreduces, found.count_confirmed, found.nccl_settings_matter) == (97, True, True)
    assert target.allreduce_us == pytest.approx(97 * 8)
    # 97 x (5 + 8 + 2 x 0.5) + 12 of the gather
    assert target.span_us == pytest.approx(97 * 14 + 12)
    # a target's start to the next: itself and 0.5, two drafts of 3 x (5 + 7 + 1) + 12.5, and the pause
    assert target.step_us == pytest.approx(97 * 14 + 12.5 + 2 * (3 * 13 + 12.5) + 100)
    (draft,) = found.others
    assert (draft.num_forwards, draft.allreduces_per_forward) == (10, 3)
    kernel = target.kernels[0]
    assert (kernel.name, kernel.method, kernel.algo, kernel.per_forward, kernel.median_us, kernel.num_blocks) == (NCCL, "nccl", "Ring", 97, 8, 4)  # fmt: skip


def test_prefill_outside_the_graphs_is_counted_apart(tmp_path):
    b = Builder()
    b.forward(97, graph=False, us=40.0)
    for _ in range(3):
        b.forward(97)
    found = api.validate_trace(b.write(tmp_path / "t.json"))
    assert found.target.num_forwards == 3
    assert found.target.allreduce_us == pytest.approx(97 * 8)
    assert found.outside_allreduces == 97
    assert found.count_confirmed is None


def test_the_engines_own_kernel_means_that_settings_do_not_matter(tmp_path):
    found = api.validate_trace(cycles(name=CUSTOM).write(tmp_path / "t.json"), model="qwen3-30b-a3b")
    assert found.methods[0] == "custom"
    assert found.nccl_settings_matter is False
    assert found.count_confirmed is True


def test_the_curve_of_nccl_is_not_held_against_another_kernel_unsaid(tmp_path):
    machine = make_machine().model_copy(update={"topology": "h200-x2"})
    run = make_run(tmp_path / "run", make_fit([entry({}, [40, 55, 120])], num_ranks=2), machine=machine)
    found = api.validate_trace(cycles(name=CUSTOM).write(tmp_path / "t.json"), model="qwen3-30b-a3b", run=run, setting="base")  # fmt: skip
    assert found.predicted_allreduce_us is not None
    assert any("NCCL does not carry these" in text for text in found.warnings)


def test_a_run_of_gloo_is_no_prediction_for_a_gpu(tmp_path):
    run = make_run(tmp_path / "gloo", make_fit([entry({}, [40, 55, 120])]), backend="gloo")
    found = api.validate_trace(cycles().write(tmp_path / "t.json"), model="qwen3-30b-a3b", run=run, setting="base")
    assert any("gloo over local CPU processes" in warning for warning in found.warnings)


def test_kernels_without_a_time_are_counted(tmp_path):
    b = cycles()
    kernels = [e for e in b.events if e["cat"] == "kernel"]
    kernels[10]["dur"], kernels[11]["ts"], kernels[12]["dur"] = None, "soon", -1
    found = api.validate_trace(b.write(tmp_path / "t.json"), model="qwen3-30b-a3b")
    assert any(text.startswith("3 kernels without a readable start or duration") for text in found.warnings)
    assert found.target.num_forwards == 4


def test_two_forwards_taken_for_one_are_not_the_target(tmp_path):
    b = Builder()
    for num in (97, 97, 194, 97, 97):
        b.forward(num)
    assert api.validate_trace(b.write(tmp_path / "t.json")).target.allreduces_per_forward == 97


def test_an_eager_target_beside_a_graphed_drafter_is_named(tmp_path):
    b = Builder()
    for _ in range(4):
        b.forward(3)
        b.forward(97, graph=False)
    found = api.validate_trace(b.write(tmp_path / "t.json"))
    assert any("388 of 400 all-reduces are outside" in text for text in found.warnings)


def test_a_fused_model_keeps_two_all_reduces_and_says_what_the_time_holds(tmp_path):
    b = Builder()
    for _ in range(4):
        b.correlation += 1
        shared = b.correlation
        b.events.append(
            {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": "cudaGraphLaunch",
                "ts": b.now,
                "dur": 1,
                "args": {"correlation": shared},
            }
        )
        b.kernel(NCCL, 8, shared)
        for _ in range(95):
            b.kernel(FUSED, 6, shared)
        b.kernel(NCCL, 8, shared)
    found = api.validate_trace(b.write(tmp_path / "t.json"), model="qwen3-30b-a3b")
    assert (found.target.allreduces_per_forward, found.count_confirmed, found.nccl_settings_matter) == (97, True, False)
    assert any("residual" in text for text in found.warnings)


def test_a_count_that_the_model_file_does_not_say_is_named(tmp_path):
    b = Builder()
    for _ in range(4):
        b.forward(65)
    found = api.validate_trace(b.write(tmp_path / "t.json"), model="qwen3-30b-a3b")
    assert (found.target.allreduces_per_forward, found.count_confirmed) == (65, False)
    assert any("65 all-reduces a forward, the model file says 97" in text for text in found.warnings)


def test_eager_forwards_end_with_the_gather_of_logits(tmp_path):
    b = Builder()
    b.forward(20, graph=False)  # the profile starts inside this one
    for _ in range(4):
        b.forward(33, graph=False)
    found = api.validate_trace(b.write(tmp_path / "t.json"))
    assert "all-gather" in found.delimited_by
    assert (found.target.num_forwards, found.target.allreduces_per_forward) == (4, 33)


def test_gpu_annotations_delimit_eager_forwards(tmp_path):
    b = Builder()
    for step in range(3):
        start = b.now
        b.forward(33, graph=False, gather=False)
        b.events.append({"ph": "X", "cat": "gpu_user_annotation", "name": f"step[DECODE bs=4] {step}", "ts": start, "dur": b.now - start - 0.5, "pid": 0,
                         "args": {"device": 0}})  # fmt: skip
    found = api.validate_trace(b.write(tmp_path / "t.json"))
    assert "annotations" in found.delimited_by
    assert (found.target.num_forwards, found.target.allreduces_per_forward) == (3, 33)


def test_ranks_that_share_correlation_ids_are_kept_apart(tmp_path):
    b = Builder()
    for step in range(3):
        for name in ("gemm", NCCL, "gemm", NCCL):
            b.kernel(name, 5.0, 100 + step, device=0)
        # the other rank's plain launches happen to have the same numbers
        b.kernel(NCCL, 5.0, 100 + step, device=1)
    found = api.validate_trace(b.write(tmp_path / "t.json"))
    assert (found.num_devices, found.device, found.target.num_forwards, found.target.allreduces_per_forward) == (
        2,
        0,
        3,
        2,
    )


def test_decode_annotations_come_before_those_of_prefill(tmp_path):
    b = Builder()
    for kind, count, num in (("EXTEND bs=1 toks=8", 6, 33), ("DECODE bs=4", 3, 33)):
        for _ in range(count):
            start = b.now
            b.forward(num, graph=False, gather=False, us=40.0 if "EXTEND" in kind else 8.0)
            b.events.append(
                {
                    "ph": "X",
                    "cat": "gpu_user_annotation",
                    "name": f"step[{kind}]",
                    "ts": start,
                    "dur": b.now - start - 0.5,
                    "pid": 0,
                }
            )
    found = api.validate_trace(b.write(tmp_path / "t.json"))
    assert "DECODE" in found.delimited_by
    assert (found.target.num_forwards, found.target.allreduce_us, found.outside_allreduces) == (3, 33 * 8, 6 * 33)


def test_repetition_delimits_what_nothing_else_does(tmp_path):
    b = Builder()
    for _ in range(6):
        b.kernel("embedding", 3)
        b.forward(9, graph=False, gather=False)
    found = api.validate_trace(b.write(tmp_path / "t.json"))
    assert "repetition" in found.delimited_by
    assert found.target.allreduces_per_forward == 9


def test_one_odd_forward_cannot_be_told(tmp_path):
    b = Builder()
    b.forward(3, graph=False, gather=False)
    found = api.validate_trace(b.write(tmp_path / "t.json"))
    assert (found.target, found.outside_allreduces) == (None, 3)
    with pytest.raises(QualityError, match="does not tell"):
        gate(found)


def test_of_several_devices_the_one_that_waits_least_stands_for_all(tmp_path):
    b = Builder()
    for _ in range(4):
        b.forward(5, us=9.0, device=0)
        b.forward(5, us=6.0, device=1)
    found = api.validate_trace(b.write(tmp_path / "t.json"))
    assert (found.num_devices, found.device, found.target.allreduce_us) == (2, 1, 30)


def test_the_runs_in_forward_cost_is_put_beside_it(tmp_path):
    machine = make_machine().model_copy(update={"topology": "rtx-pro-6000-x8"})
    run = make_run(tmp_path / "run", make_fit([entry({}, [10, 12, 20])]), machine=machine)
    b = Builder()
    for _ in range(4):
        b.forward(123, us=11.0)
    found = api.validate_trace(b.write(tmp_path / "t.json"), model="kimi-k2.5", run=run, setting="base", draft_tokens=3)
    # 123 x 12 us at 43,008 B against 123 x 11
    assert found.predicted_allreduce_us.value == pytest.approx(123 * 12)
    assert found.error_percent == pytest.approx(100 * (12 / 11 - 1))


def gpu_trace(rows):
    head = "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name"
    return "Processing [report.sqlite] with [cuda_gpu_trace.py]...\n\n" + head + "\n" + "\n".join(rows) + "\n"


def nsys_row(start_ns, duration_ns, correlation, name, device=0):
    return f'{start_ns},{duration_ns},{correlation},24,1,1,512,1,1,32,0.0,0.0,,,,,NVIDIA H200 ({device}),1,,7,"{name}"'


def test_nsight_gpu_trace(tmp_path):
    rows, now = [], 0
    for launch in range(4):
        for _ in range(9):
            rows.append(nsys_row(now, 5000, 50 + launch, "void gemm<int, 3>(a, b)"))
            rows.append(nsys_row(now + 5000, 8000, 50 + launch, NCCL))
            now += 14000
        rows.append(nsys_row(now, 2000, 900 + launch, "[CUDA memcpy Device-to-Host]"))
        now += 10000
    path = tmp_path / "t.csv"
    path.write_text(gpu_trace(rows))
    found = api.validate_trace(path)
    assert (found.kind, found.target.num_forwards, found.target.allreduces_per_forward) == ("nsys-gpu-trace", 4, 9)
    assert found.target.allreduce_us == pytest.approx(72)
    assert found.target.step_us == pytest.approx(9 * 14 + 10)
    assert found.target.kernels[0].num_blocks == 24


def test_nsight_with_whole_graphs_says_what_to_record(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(gpu_trace([nsys_row(i * 1000, 800, i, "void prefill(a)") for i in range(8)]))
    found = api.validate_trace(path)
    assert found.target is None
    assert any("--cuda-graph-trace=node" in text for text in found.warnings)


def test_nsight_kernel_summary_has_means_only(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n"
        f'60.0,7760000,970,8000.0,8000.0,7000,9000,100.0,"{NCCL}"\n'
        f'1.0,120000,10,12000.0,12000.0,11000,13000,100.0,"{GATHER}"\n39.0,4850000,970,5000.0,5000.0,4000,6000,10.0,gemm\n'
    )
    found = api.validate_trace(path, model="qwen3-30b-a3b")
    assert (found.target.num_forwards, found.target.allreduces_per_forward, found.count_confirmed) == (10, 97, True)
    assert found.target.allreduce_us == pytest.approx(776)
    assert any("no order" in text for text in found.warnings)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b"not a trace\n", "is no trace"),
        (b'{"traceEvents": [{"ph": "X", "cat": "ker', "is not JSON"),
        (b'{"events": []}', "no traceEvents"),
        (b'{"traceEvents": []}', "no GPU kernel"),
        (b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1, "dur": 1}]}', "no GPU kernel"),
        (b'{"traceEvents": [null, 3, {"cat": "kernel", "name": "k", "ts": "x", "dur": null}]}', "no GPU kernel"),
        (gzip.compress(b'{"traceEvents": []}')[:-9], "cannot read"),
        (b"Start (ns),Duration (ns),Name\n", "no GPU kernel"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, data, says):
    path = tmp_path / "t"
    path.write_bytes(data)
    with pytest.raises(InputError, match=says):
        api.validate_trace(path)


@pytest.mark.parametrize(
    ("name", "method", "algo"),
    [
        (NCCL, "nccl", "Ring"),
        ("ncclDevKernel_AllReduce_Sum_f16_TREE_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)", "nccl", "Tree"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "nccl", "Ring"),
        ("_Z40ncclDevKernel_AllReduce_Sum_bf16_RING_LL24ncclDevKernelArgsStorageILm4096EE", "nccl", "Ring"),
        ("ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16(ncclSymkDevWorkArgs4K)", "nccl-symmetric", None),
        ("void sglang::cross_device_reduce_1stage<__nv_bfloat16, 2>(sglang::RankData*, int)", "custom", None),
        (CUSTOM, "custom", None),
        (FUSED, "flashinfer-fusion", None),
        ("void multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)", "torch-symm-mem", None),
        ("void at::native::two_shot_all_reduce_kernel_inplace<c10::BFloat16>()", "torch-symm-mem", None),
    ],
)  # fmt: skip
def test_kernel_names(name, method, algo):
    kind = classify(name)
    assert (kind.collective, kind.method, kind.algo) == ("all_reduce", method, algo)


@pytest.mark.parametrize(
    "name",
    [
        "void cublasLt::splitKreduce_kernel<32>()",
        "moe_sum_reduce_kernel",
        "void at::native::reduce_kernel<512>()",
        "triton_red_fused_0",
    ],
)
def test_compute_kernels_are_no_collectives(name):
    assert classify(name) is None
