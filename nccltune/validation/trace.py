"""``validate trace``: count and time the all-reduces of a forward in a profiler's trace, and check the model's count."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nccltune import registry, stats
from nccltune.costmodel.basis import Question, resolve
from nccltune.costmodel.cautions import not_of_gpus
from nccltune.errors import InputError, QualityError
from nccltune.schemas.common import header
from nccltune.schemas.trace import SCHEMA, SCHEMA_VERSION, CollectiveKernel, ForwardKind, Method, TraceReport
from nccltune.store import Run
from nccltune.validation.forwards import Forward, Names, split
from nccltune.validation.kernels import classify
from nccltune.validation.trace_file import Trace, read_trace

# The embedding's and the last layer's all-reduce stay apart where FlashInfer fuses the others with the norm.
_CARRIED_BY_NCCL: tuple[Method, ...] = ("nccl",)


def analyze_file(path: Path, model: str | None = None) -> TraceReport:
    """Read a trace and report on it. Raises InputError for what cannot be read."""
    return analyze(read_trace(path), model, inputs=(path.name,))


def with_prediction(found: TraceReport, run: Path, setting: str | None, num_tokens: int) -> TraceReport:
    """Add what the run's in-forward curve says of one forward over ``num_tokens`` (batch x draft tokens)."""
    if found.model is None:
        raise InputError("a prediction for a trace needs the model", "it gives the message size and the count", "give --model")  # fmt: skip
    basis = resolve(Question(model=found.model, run=run, setting=setting))
    if basis.system.inferred([basis.setting.name]):
        raise InputError(f"the run has no curve of setting '{basis.setting.name}'", "", "scan it, or choose another --setting")  # fmt: skip
    model = basis.system.model
    curve = basis.system.curves[basis.setting.name]
    predicted = curve.at([model.allreduce_bytes(num_tokens)]).scaled(model.num_allreduces).item(0)
    measured = found.target.allreduce_us if found.target else None
    error = 100 * (predicted.value / measured - 1) if measured else None
    warnings = [*found.warnings, *not_of_gpus(Run.load(run))]
    if found.nccl_settings_matter is False:
        warnings.append("the run's curve is NCCL's, and NCCL does not carry these all-reduces: the prediction is of what NCCL would take")  # fmt: skip
    return found.model_copy(update={"predicted_allreduce_us": predicted, "error_percent": error, "warnings": warnings})


def analyze(trace: Trace, model: str | None = None, inputs: Sequence[str] = ()) -> TraceReport:
    """Report on a trace; several devices: the one whose all-reduces wait least stands for all."""
    expected = registry.load_model(model).num_allreduces if model else None
    if trace.totals:
        return _from_totals(trace, model, expected, inputs)
    devices = sorted({k.device for k in trace.kernels})
    names = Names()
    found = {device: split(trace, device, names) for device in devices}
    kinds = {device: _kinds(forwards, names) for device, (forwards, _) in found.items()}
    targets = {device: _target(kinds[device], expected) for device in devices}
    known = [d for d in devices if targets[d] is not None]
    chosen = min(known, key=lambda d: _allreduce_us(targets[d])) if known else devices[0]
    target = targets[chosen]
    forwards, how = found[chosen]
    inside = sum(names.count(f.kernels, "all_reduce") for f in forwards)
    everywhere = names.count([k for k in trace.kernels if k.device == chosen], "all_reduce")
    confirmed = None if expected is None or target is None else round(target.allreduces_per_forward) == expected
    methods = _methods(trace, names)
    return TraceReport(
        **{k: v for k, v in header(SCHEMA, SCHEMA_VERSION).items() if k != "schema"},
        kind=trace.kind, device=chosen, num_devices=len(devices), delimited_by=how, model=model, expected_allreduces=expected,
        count_confirmed=confirmed, methods=methods, nccl_settings_matter=_matters(target), target=target,
        others=[k for k in kinds[chosen] if k is not target], outside_allreduces=everywhere - inside,
        warnings=[*trace.warnings, *_outside(inside, everywhere), *_warnings(trace, target, expected, confirmed, methods)], inputs=list(inputs),
    )  # fmt: skip


def gate(found: TraceReport) -> None:
    """Raise QualityError where the all-reduces of a forward could not be told."""
    if found.target is None:
        why = "no all-reduce kernel was recognised" if not found.methods else f"forwards: {found.delimited_by}"
        raise QualityError("the trace does not tell the all-reduces of a forward", why, "profile at least four decode steps, with --cuda-graph-trace=node in Nsight Systems")  # fmt: skip


def _kinds(forwards: Sequence[Forward], names: Names) -> list[ForwardKind]:
    """Group forwards by their numbers of all-reduces and all-gathers, most all-reduces first."""
    groups: dict[tuple[int, int], list[Forward]] = {}
    for forward in forwards:
        key = (names.count(forward.kernels, "all_reduce"), names.count(forward.kernels, "all_gather"))
        groups.setdefault(key, []).append(forward)
    ordered = sorted(groups.items(), key=lambda item: -item[0][0])
    return [_kind(key, group, names) for key, group in ordered if any(key)]


def _kind(key: tuple[int, int], forwards: Sequence[Forward], names: Names) -> ForwardKind:
    sums = np.array([_sum_us(f, names) for f in forwards])
    starts = np.array(sorted(f.start_us for f in forwards))
    low, high = stats.median_interval(sums)
    return ForwardKind(
        num_forwards=len(forwards), allreduces_per_forward=key[0], allgathers_per_forward=key[1],
        kernels_per_forward=float(np.median([len(f.kernels) for f in forwards])),
        allreduce_us=float(np.median(sums)), allreduce_low_us=low, allreduce_high_us=high,
        span_us=float(np.median([f.span_us for f in forwards])),
        step_us=float(np.median(np.diff(starts))) if len(starts) > 1 else None, kernels=_collectives(forwards, names),
    )  # fmt: skip


def _sum_us(forward: Forward, names: Names) -> float:
    return sum(k.duration_us for k in forward.kernels if (c := names(k.name)) is not None and c.collective == "all_reduce")  # fmt: skip


def _collectives(forwards: Sequence[Forward], names: Names) -> list[CollectiveKernel]:
    times: dict[str, list[float]] = {}
    blocks: dict[str, set[int | None]] = {}
    for forward in forwards:
        for kernel in forward.kernels:
            if names(kernel.name) is not None:
                times.setdefault(kernel.name, []).append(kernel.duration_us)
                blocks.setdefault(kernel.name, set()).add(kernel.num_blocks)
    result = []
    for name, found in times.items():
        kind = names(name)
        assert kind is not None
        same = blocks[name]
        result.append(
            CollectiveKernel(
                name=name, collective=kind.collective, method=kind.method, algo=kind.algo, per_forward=len(found) / len(forwards),
                median_us=float(np.median(found)), total_us=sum(found) / len(forwards),
                num_blocks=next(iter(same)) if len(same) == 1 else None,
            )
        )  # fmt: skip
    return sorted(result, key=lambda k: -k.total_us)


def _target(kinds: Sequence[ForwardKind], expected: int | None) -> ForwardKind | None:
    """The kind with the model's number of all-reduces; else the one that holds the most of the trace's, the drafter
    having few and two forwards taken for one being rare.
    """
    exact = [k for k in kinds if expected is not None and k.allreduces_per_forward == expected]
    some = [k for k in kinds if k.allreduces_per_forward > 0]
    return exact[0] if exact else max(some, key=lambda k: k.num_forwards * k.allreduces_per_forward, default=None)


def _allreduce_us(target: ForwardKind | None) -> float:
    assert target is not None
    return target.allreduce_us


def _methods(trace: Trace, names: Names) -> list[Method]:
    counts: dict[Method, int] = {}
    for kernel in trace.kernels:
        kind = names(kernel.name)
        if kind is not None and kind.collective == "all_reduce":
            counts[kind.method] = counts.get(kind.method, 0) + 1
    return sorted(counts, key=lambda method: -counts[method])


def _matters(target: ForwardKind | None) -> bool | None:
    """Whether NCCL carries at least half of the target's all-reduces."""
    if target is None:
        return None
    mine = sum(k.per_forward for k in target.kernels if k.collective == "all_reduce" and k.method in _CARRIED_BY_NCCL)
    return mine >= 0.5 * target.allreduces_per_forward


def _from_totals(trace: Trace, model: str | None, expected: int | None, inputs: Sequence[str]) -> TraceReport:
    """A kernel summary has no order: only its totals, and a mean per all-gather (one a forward) where it has some."""
    kinds = {name: kind for name in trace.totals if (kind := classify(name)) is not None}
    count = {c: sum(trace.totals[n][0] for n, k in kinds.items() if k.collective == c) for c in ("all_reduce", "all_gather")}  # fmt: skip
    total = sum(trace.totals[n][1] for n, k in kinds.items() if k.collective == "all_reduce")
    forwards = count["all_gather"]
    methods = sorted({k.method for k in kinds.values() if k.collective == "all_reduce"})
    target = None
    warnings = ["a kernel summary has no order: per-forward figures are means over all forwards, drafter and prefill included; export cuda_gpu_trace"]  # fmt: skip
    if forwards and count["all_reduce"]:
        per = count["all_reduce"] / forwards
        mean = total / forwards
        target = ForwardKind(
            num_forwards=forwards, allreduces_per_forward=per, allgathers_per_forward=1.0,
            kernels_per_forward=sum(c for c, _ in trace.totals.values()) / forwards, allreduce_us=mean, allreduce_low_us=mean, allreduce_high_us=mean,
            span_us=sum(t for _, t in trace.totals.values()) / forwards,
            kernels=[CollectiveKernel(name=n, collective=k.collective, method=k.method, algo=k.algo, per_forward=trace.totals[n][0] / forwards,
                                      median_us=trace.totals[n][1] / trace.totals[n][0], total_us=trace.totals[n][1] / forwards) for n, k in kinds.items()],
        )  # fmt: skip
    confirmed = target.allreduces_per_forward == expected if target and expected is not None else None
    how = (
        "all-gathers counted as forwards (one of logits each)" if target else "not told: a summary without all-gathers"
    )
    return TraceReport(
        **{k: v for k, v in header(SCHEMA, SCHEMA_VERSION).items() if k != "schema"},
        kind=trace.kind, num_devices=1, delimited_by=how, model=model, expected_allreduces=expected, count_confirmed=confirmed,
        methods=methods, nccl_settings_matter=_matters(target), target=target, outside_allreduces=0 if target else count["all_reduce"],
        warnings=warnings, inputs=list(inputs),
    )  # fmt: skip


def _outside(inside: int, everywhere: int) -> list[str]:
    if not 0 < inside < everywhere - inside:
        return []
    return [f"{everywhere - inside} of {everywhere} all-reduces are outside the forwards told apart: prefill, or a verify that no CUDA graph covers"]  # fmt: skip


def _warnings(
    trace: Trace, target: ForwardKind | None, expected: int | None, confirmed: bool | None, methods: Sequence[Method]
) -> list[str]:
    found = []
    if not methods:
        found.append("no all-reduce kernel was recognised: one GPU, or a kernel whose name is not known here")
    if trace.kind == "nsys-gpu-trace" and not trace.graph_launches:
        found.append("no graph launch shows its kernels: record with --cuda-graph-trace=node, or graphs are one block each")  # fmt: skip
    if confirmed is False and target is not None:
        found.append(f"the engine makes {target.allreduces_per_forward:g} all-reduces a forward, the model file says {expected}: fused, skipped or further ones; correct allreduces_per_forward where that holds for every forward")  # fmt: skip
    if "nccl" in methods:
        found.append("NCCL's kernel names do not tell the protocol (all are called LL), and Ring's kernel runs every algorithm but Tree: see NCCL_DEBUG_SUBSYS=TUNING")  # fmt: skip
    if "flashinfer-fusion" in methods:
        found.append("fused kernels hold the residual and the norm too: their time is more than an all-reduce's")
    return found
