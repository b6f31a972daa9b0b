"""Check and time one case on an open communicator."""

from nccltune import stats
from nccltune.bench import records
from nccltune.bench.options import ScanOptions
from nccltune.bench.sampling import allreduces_per_replay
from nccltune.bench.session import Communicator, Session
from nccltune.schemas.measurement import Case, Choice, Measurement

# Checks with fresh data: LL128 where NCCL does not choose it by itself can corrupt silently (NVIDIA/nccl#790).
CHECK_SEEDS = 2
CHECK_SEEDS_LL128 = 8
# A 90% interval wider than this share of the median is said with the case.
_WIDE = 0.1


def time_case(
    session: Session, comm: Communicator, case: Case, choice: Choice | None, options: ScanOptions, first_seed: int
) -> Measurement:
    """Compare sums of fresh data with the exact ones, then time; wrong sums give a record without times."""
    size = case.size_bytes
    forced_ll128 = choice is not None and choice.proto == "LL128" and "NCCL_PROTO" in case.setting.env
    seeds = [first_seed + i for i in range(CHECK_SEEDS_LL128 if forced_ll128 else CHECK_SEEDS)]
    num_wrong, num_checked = session.check(comm, size, seeds)
    if num_wrong:
        return records.record(case, "wrong_results", num_wrong=num_wrong, num_checked=num_checked, in_force=True)
    num_per_replay = allreduces_per_replay(
        case.timing, comm.resolution.model_us.get(size), on_gpu=case.backend != "gloo"
    )
    weight_bytes = options.weight_bytes.get(size, 0)
    samples = session.measure(comm, size, case.timing, num_per_replay, weight_bytes, options.rule)
    summary = stats.summarize(samples.per_allreduce_us)
    width = (summary.high - summary.low) / summary.median if summary.median > 0 else 0.0
    return records.record(
        case, "ok", num_wrong=0, num_checked=num_checked, samples_us=[round(float(x), 4) for x in samples.per_allreduce_us],
        stats={k: round(v, 5) for k, v in summary.to_dict().items()}, compute_us=samples.compute_us,
        num_per_replay=num_per_replay, stop_reason=samples.stop_reason,
        warnings=[f"90% interval is {100 * width:.0f}% wide"] if width > _WIDE else [],
    )  # fmt: skip
