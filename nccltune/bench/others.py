"""Run the other collectives of an engine once under a setting: they must still work, and give right data.

Since NCCL 2.24 a list such as NCCL_ALGO=Tree leaves all-gather and broadcast without any algorithm; a setting that is
fine for all-reduce must not stop the server at its first logits all-gather (nccl.md A3).
"""

from typing import Any

from nccltune.bench import sums

COLLECTIVES = ("all_gather", "reduce_scatter", "broadcast")
_SEED = 77


def run_others(torch: Any, comm: Any, stream: Any, like: Any, rank: int, num_ranks: int) -> dict[str, str]:
    """Run each collective on exact data; return the fault of each, empty when it is right.

    ``like``: a tensor of the message's type and device whose length is the elements of one rank.
    """
    faults = {}
    for collective in COLLECTIVES:
        try:
            with torch.cuda.stream(stream):
                faults[collective] = _ONE[collective](torch, comm, stream, like, rank, num_ranks)
            stream.synchronize()
        except Exception as error:
            faults[collective] = f"{type(error).__name__}: {error}"
    return faults


def _all_gather(torch: Any, comm: Any, stream: Any, like: Any, rank: int, num_ranks: int) -> str:
    count = like.numel()
    source, target = (
        torch.empty_like(like),
        torch.full((count * num_ranks,), -99.0, dtype=like.dtype, device=like.device),
    )
    sums.fill(torch, source, rank, _SEED)
    comm.other("all_gather", source, target, count, stream)
    wrong = sum(sums.count_different(torch, target[r * count : (r + 1) * count], r, _SEED) for r in range(num_ranks))
    return f"{wrong} wrong elements" if wrong else ""


def _reduce_scatter(torch: Any, comm: Any, stream: Any, like: Any, rank: int, num_ranks: int) -> str:
    count = like.numel()
    source = torch.empty(count * num_ranks, dtype=like.dtype, device=like.device)
    target = torch.full_like(like, -99.0)
    sums.fill(torch, source, rank, _SEED)
    comm.other("reduce_scatter", source, target, count, stream)
    wrong = sums.count_wrong(torch, target, num_ranks, _SEED, start=rank * count)
    return f"{wrong} wrong elements" if wrong else ""


def _broadcast(torch: Any, comm: Any, stream: Any, like: Any, rank: int, _: int) -> str:
    source, target = torch.empty_like(like), torch.full_like(like, -99.0)
    sums.fill(torch, source, rank, _SEED)
    comm.other("broadcast", source, target, like.numel(), stream)
    wrong = sums.count_different(torch, target, 0, _SEED)
    return f"{wrong} wrong elements" if wrong else ""


_ONE = {"all_gather": _all_gather, "reduce_scatter": _reduce_scatter, "broadcast": _broadcast}
