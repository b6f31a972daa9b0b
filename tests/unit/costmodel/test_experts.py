"""Distinct experts: worked numbers and the laws that any routing keeps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccltune import registry
from nccltune.costmodel.experts import MAX_SKEW, distinct_experts, effective_tokens, inclusion_probabilities
from nccltune.errors import InputError
from nccltune.schemas.model import Moe

KIMI = Moe(num_layers=60, num_experts=384, top_k=8, intermediate_size=2048)


def moe(num_experts: int, top_k: int) -> Moe:
    return Moe(num_layers=1, num_experts=num_experts, top_k=min(top_k, num_experts), intermediate_size=1)


moes = st.builds(moe, st.integers(2, 512), st.integers(1, 16))
skews = st.floats(0, MAX_SKEW)


def test_uniform_routing_matches_the_coupon_collector():
    # 384 (1 - (376/384)^n): n = 1 -> 8; n = 2 -> 8 + 8 x 376/384 = 15.83; n = 4 -> 31.01; n = 16 -> 109.8
    assert distinct_experts(KIMI, [1, 2, 4, 16]) == pytest.approx([8, 15.833, 31.014, 109.819], abs=1e-3)


def test_small_skew_by_hand():
    # E = 2, m = 1, s = 1: q = (2/3, 1/3); U(2) = (1 - 1/9) + (1 - 4/9) = 13/9, uniform 2 (1 - 1/4) = 1.5
    assert inclusion_probabilities(moe(2, 1), 1.0) == pytest.approx([2 / 3, 1 / 3])
    assert distinct_experts(moe(2, 1), 2, skew=1.0) == pytest.approx(13 / 9)


def test_capped_skew_by_hand():
    # E = 3, m = 2, s = 1: weights 1, 1/2, 1/3 times 12/11 give 1.09 for the first; capped at 1, the others share 1
    # as 1/2 : 1/3, that is 0.6 and 0.4
    assert inclusion_probabilities(moe(3, 2), 1.0) == pytest.approx([1.0, 0.6, 0.4])


@given(moes, skews)
def test_inclusion_is_a_probability_and_adds_up_to_top_k(m, skew):
    q = inclusion_probabilities(m, skew)
    assert q.sum() == pytest.approx(m.top_k, rel=1e-9)
    assert np.all((q >= 0) & (q <= 1))
    assert np.all(np.diff(q) <= 1e-15)


@given(moes, skews, st.floats(0, 1))
def test_bounds_monotone_and_concave(m, skew, correlation):
    n = np.linspace(1, 60, 60)
    u = distinct_experts(m, n, skew=skew, correlation=correlation)
    assert u[0] == pytest.approx(m.top_k)
    assert np.all(u <= m.num_experts)
    assert np.all(np.diff(u) >= -1e-9)
    assert np.all(np.diff(u, 2) <= 1e-9)


@given(moes, skews, st.floats(1, 200))
def test_skew_never_needs_more_experts_than_uniform(m, skew, n):
    assert distinct_experts(m, n, skew=skew) <= distinct_experts(m, n) * (1 + 1e-9)


@given(st.integers(1, 8), st.integers(1, 16), st.floats(0, 1))
def test_correlation_lies_between_one_token_per_sequence_and_independence(batch, width, rho):
    u = distinct_experts(KIMI, batch * width, correlation=rho, tokens_per_sequence=width)
    assert distinct_experts(KIMI, batch) <= u + 1e-9
    assert u <= distinct_experts(KIMI, batch * width) + 1e-9


def test_effective_tokens_by_hand():
    # one sequence of 4 at rho 0.5: 1 + 3 x 0.5 = 2.5; two of them 5; rho 1: one per sequence
    assert effective_tokens([4, 8], correlation=0.5, tokens_per_sequence=4) == pytest.approx([2.5, 5.0])
    assert effective_tokens(8, correlation=1.0, tokens_per_sequence=4) == pytest.approx(2.0)
    assert effective_tokens([3, 8], correlation=0.3) == pytest.approx([3, 8])  # one token each: nothing to correlate


def test_all_experts_dense_models_and_shapes():
    assert distinct_experts(moe(4, 4), [0, 1, 9]) == pytest.approx([0, 4, 4])
    assert np.all(distinct_experts(registry.load_model("llama-3.1-8b"), np.ones((2, 3))) == np.zeros((2, 3)))
    assert distinct_experts(KIMI, np.ones((2, 3)), skew=1.0).shape == (2, 3)
    assert distinct_experts(KIMI, [], skew=1.0).shape == (0,)


@pytest.mark.parametrize(
    "arguments",
    [{"skew": -1}, {"skew": float("nan")}, {"skew": 99}, {"correlation": 1.1}, {"tokens_per_sequence": 0}],
)
def test_refuses_what_is_out_of_range(arguments):
    with pytest.raises(InputError):
        distinct_experts(KIMI, 4, **arguments)


def test_refuses_negative_and_nan_tokens():
    for tokens in (-1, float("nan"), float("inf")):
        with pytest.raises(InputError):
            distinct_experts(KIMI, tokens)
