"""Exact sums: the check must pass right data and see every kind of wrong data."""

import pytest

torch = pytest.importorskip("torch", reason="the measuring extra is not installed")

from nccltune.bench import sums  # noqa: E402


@pytest.mark.parametrize("num_ranks", [2, 8, 32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_sum_over_ranks_is_exact(num_ranks, dtype):
    total = torch.zeros(1000, dtype=dtype)
    for rank in range(num_ranks):
        part = torch.empty(1000, dtype=dtype)
        sums.fill(torch, part, rank, seed=3)
        total += part
    assert sums.count_wrong(torch, total, num_ranks, seed=3) == 0


def test_wrong_stale_and_nan_elements_are_counted():
    tensor = torch.empty(1000, dtype=torch.bfloat16)
    sums.fill(torch, tensor, 0, seed=1)
    for rank in (1,):
        other = torch.empty(1000, dtype=torch.bfloat16)
        sums.fill(torch, other, rank, seed=1)
        tensor += other
    tensor[17] += 1
    tensor[900] = float("nan")
    assert sums.count_wrong(torch, tensor, 2, seed=1) == 2
    # a buffer that still holds the sum of another seed is nearly all wrong
    assert sums.count_wrong(torch, tensor, 2, seed=2) > 900


def test_one_rank_alone_is_not_taken_for_the_sum():
    tensor = torch.empty(1000, dtype=torch.bfloat16)
    sums.fill(torch, tensor, 0, seed=1)
    assert sums.count_wrong(torch, tensor, 2, seed=1) > 900
