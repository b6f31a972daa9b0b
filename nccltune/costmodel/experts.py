"""Distinct experts: how many routed experts of one layer n tokens activate together, and so how many weights stream."""

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from nccltune.costmodel.estimate import Floats
from nccltune.errors import InputError
from nccltune.schemas.model import Model, Moe

MAX_SKEW = 8.0  # at 8 the second-ranked expert already has 1/256 of the first one's weight: more says nothing new
_ROWS_AT_ONCE = 4096  # bounds the (tokens x experts) table: 4096 x 512 doubles are 16 MB


def distinct_experts(
    model: Model | Moe,
    num_tokens: ArrayLike,
    *,
    skew: float = 0.0,
    correlation: float = 0.0,
    tokens_per_sequence: ArrayLike = 1.0,
) -> Floats:
    """Return U, the expected number of distinct routed experts of one layer that ``num_tokens`` tokens activate.

    Uniform routing: ``U(n) = E (1 - (1 - m/E)^n)`` for E experts, m of them per token (coupon collector).
    Kimi-K2 (E = 384, m = 8): U(1) = 8, U(4) = 384 (1 - (376/384)^4) = 31.0, U(16) = 109.8.

    ``skew`` s >= 0: expert of rank r is in a token's choice with probability q_r proportional to r^-s, scaled so
    that the q add up to m with none above 1; ``U(n) = sum_r (1 - (1 - q_r)^n)``, never above the uniform value for
    n >= 1 (concavity). s = 0 is uniform.

    ``correlation`` rho in [0, 1]: how alike tokens of the same sequence route. A sequence with D tokens in the
    forward (``tokens_per_sequence``) counts as ``1 + (D - 1)(1 - rho)`` independent ones: 0 is independent, 1 is
    all of them choosing the same experts. Sequences are independent of each other.

    All arrays broadcast. A model without experts gives zeros.
    """
    moe = model.moe if isinstance(model, Model) else model
    tokens = effective_tokens(num_tokens, correlation=correlation, tokens_per_sequence=tokens_per_sequence)
    if moe is None:
        return np.zeros_like(tokens)
    _check_skew(skew)
    if skew == 0.0:
        return _uniform(moe, tokens)
    inclusion = np.asarray(_inclusion(moe.num_experts, moe.top_k, float(skew)))
    values, inverse = np.unique(tokens, return_inverse=True)
    union = np.concatenate(
        [_union(inclusion, values[i : i + _ROWS_AT_ONCE]) for i in range(0, values.size, _ROWS_AT_ONCE)] or [values]
    )
    return np.minimum(union[inverse].reshape(tokens.shape), float(moe.num_experts))


def effective_tokens(
    num_tokens: ArrayLike, *, correlation: float = 0.0, tokens_per_sequence: ArrayLike = 1.0
) -> Floats:
    """Return the number of independent tokens: ``n/D x (1 + (D - 1)(1 - rho))``.

    One sequence of 4 tokens at rho = 0.5: 1 + 3 x 0.5 = 2.5; two such sequences (n = 8): 5.
    """
    tokens = np.asarray(num_tokens, dtype=float)
    width = np.asarray(tokens_per_sequence, dtype=float)
    if not 0.0 <= correlation <= 1.0:
        raise InputError(
            f"correlation {correlation} is out of range", "0 is independent, 1 is all the same", "give 0 to 1"
        )
    if not (np.all(np.isfinite(tokens)) and np.all(tokens >= 0)):
        raise InputError("the number of tokens is not usable", "it must be finite and not negative", "correct it")
    if not (np.all(np.isfinite(width)) and np.all(width >= 1)):
        raise InputError("the tokens per sequence are not usable", "a sequence has at least one token", "correct them")
    result: Floats = tokens / width * (1.0 + (width - 1.0) * (1.0 - correlation))
    return result


def inclusion_probabilities(moe: Moe, skew: float) -> Floats:
    """Return the probability of each expert, most popular first, to be among one token's ``top_k``; they add up to top_k."""
    _check_skew(skew)
    return np.array(_inclusion(moe.num_experts, moe.top_k, float(skew)))


def _check_skew(skew: float) -> None:
    if not 0.0 <= skew <= MAX_SKEW:
        raise InputError(f"skew {skew} is out of range", "0 is uniform routing", f"give 0 to {MAX_SKEW:g}")


def _uniform(moe: Moe, tokens: Floats) -> Floats:
    num_experts, top_k = float(moe.num_experts), float(moe.top_k)
    if top_k == num_experts:  # every token uses every expert; log1p(-1) below would be minus infinity
        return np.where(tokens > 0, num_experts, 0.0)
    union: Floats = -num_experts * np.expm1(tokens * np.log1p(-top_k / num_experts))
    return np.minimum(union, num_experts)


def _union(inclusion: Floats, tokens: Floats) -> Floats:
    missed = np.power(1.0 - inclusion[None, :], tokens[:, None])
    result: Floats = np.sum(1.0 - missed, axis=1)
    return result


@lru_cache(maxsize=64)
def _inclusion(num_experts: int, top_k: int, skew: float) -> tuple[float, ...]:
    """Scale r^-skew to add up to top_k, the first k experts capped at 1 for the smallest k that leaves none above 1."""
    weight = np.arange(1, num_experts + 1, dtype=float) ** -skew
    tail = np.cumsum(weight[::-1])[::-1]
    capped = np.arange(num_experts, dtype=float)
    fits = (top_k - capped) * weight <= tail * (1.0 + 1e-12)
    first = int(np.argmax(fits))
    scale = (top_k - first) / tail[first]
    probability = np.where(np.arange(num_experts) < first, 1.0, np.minimum(weight * scale, 1.0))
    return tuple(probability.tolist())
