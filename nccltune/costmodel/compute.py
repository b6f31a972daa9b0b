"""Terms of one target forward: kernels, weights by part, KV, per-token work, all-reduces, logits all-gather, overhead."""

import numpy as np
from numpy.typing import NDArray

from nccltune.costmodel import experts, weights
from nccltune.costmodel.priors import COMM_SPREAD, setting_exponent, setting_parameter
from nccltune.costmodel.system import Curve, Rows, System
from nccltune.costmodel.terms import Term
from nccltune.schemas.common import SOURCES
from nccltune.schemas.model import Model

Floats = NDArray[np.float64]

ANALYTIC = SOURCES.index("analytic")
ASSUMED = SOURCES.index("assumed")

# Kernels of one layer as an engine launches them, counted from the steps of the layer; only their product with the
# fitted kernel_us matters. GQA: add + norm, qkv, q/k norm, rope + cache write, attention, combine, output projection,
# allowance for a copy. MLA: two down-projections, two norms, up-projection, two absorbed products, rope, cache write,
# attention, combine, output projection and the add + norm, with two copies. Expert layer: norm, router, top-k,
# alignment (2), two products, activation, reduction.
_KERNELS = {"gqa": 8, "mla": 15}
_INDEXER_KERNELS = 5
_MOE_KERNELS = 9
_SHARED_KERNELS = 3
_DENSE_KERNELS = 4

_STREAMS = {
    "attention": "attention_efficiency",
    "dense": "dense_efficiency",
    "shared_experts": "dense_efficiency",
    "router": "dense_efficiency",
    "lm_head": "dense_efficiency",
}
_SIZE_EXPONENT_CAP = 16.0
_EXACT_ROWS = 4096
_GRID_POINTS = 2000
_NINETY = 1.645  # half-width of a 90% interval in standard deviations


def num_kernels(model: Model) -> int:
    """Kernels of one forward: Qwen3-30B-A3B, 48 layers of 8 + 9 -> 816."""
    attention = _KERNELS[model.attention.kind] + (_INDEXER_KERNELS if model.attention.indexer_num_heads else 0)
    total = model.num_layers * attention + model.num_dense_layers * _DENSE_KERNELS
    if model.moe:
        total += model.moe.num_layers * (_MOE_KERNELS + (_SHARED_KERNELS if model.moe.num_shared_experts else 0))
    return total


def target_terms(system: System, rows: Rows) -> list[Term]:
    """Terms of the target forward over ``batch x draft_tokens`` tokens, overhead of a verify included."""
    ones = np.ones(len(rows))
    model = system.model
    layers = model.num_layers
    terms = [
        Term("kernels", "compute", ones * num_kernels(model) * 1e-3, {"kernel_us": 1.0}, ANALYTIC,
             f"{num_kernels(model)} kernels of one forward"),
        Term("host", "compute", ones, {"forward_ms": 1.0}, ASSUMED, "host time of one forward"),
        *_weight_terms(system, rows),
        Term("kv cache", "compute", rows.batch_size * weights.kv_bytes(model, system.num_ranks, rows.context_tokens)
             / system.memory_bytes_per_s * 1e3, {"kv_efficiency": -1.0}, ANALYTIC, "read once per request and forward"),
        Term("per token", "compute", rows.num_tokens * layers * 1e-3, {"token_us": 1.0}, ASSUMED, "activations and routing"),
        *comm_terms(system, rows, model.num_allreduces, rows.num_tokens, model.hidden_size, model.vocab_size),
    ]  # fmt: skip
    drafted = rows.draft_tokens > 1
    if drafted.any():
        growth = np.log(np.maximum(rows.draft_tokens - 1, 1))
        terms.append(
            Term("verify overhead", "overhead", drafted.astype(float),
                 {"overhead_ms": 1.0, "overhead_exponent": growth}, ASSUMED, "what verify costs beyond a plain forward")
        )  # fmt: skip
    return terms


def _weight_terms(system: System, rows: Rows) -> list[Term]:
    model, ranks = system.model, system.num_ranks
    per_ms = 1e3 / system.memory_bytes_per_s
    none = np.zeros(len(rows))
    if model.moe is None:
        streamed, plain = weights.weight_bytes(model, ranks, none), None
    else:
        streamed = weights.weight_bytes(model, ranks, _distinct(system, rows.num_tokens, rows.draft_tokens))
        plain = weights.weight_bytes(model, ranks, _distinct(system, rows.batch_size, np.ones(len(rows))))
    terms = []
    for part, parameter in _STREAMS.items():
        if part in streamed and np.any(streamed[part]):
            base = np.broadcast_to(np.asarray(streamed[part], float) * per_ms, none.shape)
            terms.append(Term(f"{part.replace('_', ' ')} weights", "compute", base, {parameter: -1.0}, ANALYTIC))
    if plain is not None:
        once = np.broadcast_to(np.asarray(plain["routed_experts"], float), none.shape)
        more = np.maximum(np.asarray(streamed["routed_experts"], float) - once, 0.0)
        terms.append(Term("expert weights", "compute", once * per_ms, {"expert_efficiency": -1.0}, ANALYTIC,
                          "distinct experts of one token per request"))  # fmt: skip
        if more.any():
            terms.append(Term("expert weights, drafted tokens", "compute", more * per_ms,
                              {"expert_efficiency": -1.0, "expert_growth": 1.0}, ANALYTIC,
                              "further experts that the drafted tokens activate"))  # fmt: skip
    return terms


def _distinct(system: System, num_tokens: Floats, tokens_per_sequence: Floats) -> Floats:
    moe = system.model.moe
    assert moe is not None
    tokens = experts.effective_tokens(num_tokens, correlation=system.correlation, tokens_per_sequence=tokens_per_sequence)  # fmt: skip
    if tokens.size <= _EXACT_ROWS:
        return np.asarray(experts.distinct_experts(moe, tokens, skew=system.skew), dtype=float)
    # A large grid: U is smooth in the tokens, and 2000 points between its ends leave an error below 1e-4.
    grid = np.geomspace(tokens.min(), max(float(tokens.max()), float(tokens.min()) * 1.001), _GRID_POINTS)
    return np.interp(tokens, grid, experts.distinct_experts(moe, grid, skew=system.skew))


def comm_terms(
    system: System, rows: Rows, num_allreduces: int, num_tokens: Floats, hidden: int, vocab: int,
    *, names: tuple[str, str] = ("all-reduces", "logits all-gather"), group: str = "comm",
) -> list[Term]:  # fmt: skip
    """All-reduces of ``num_tokens x hidden`` and one all-gather of ``num_tokens x vocab`` activations.

    A ring all-gather takes half the steps and moves half the bytes of a ring all-reduce of the same total size, so
    it is priced as half of one (docs/model.md).
    """
    if system.num_ranks == 1:
        return []
    width = system.model.activation_bytes
    reduced = _curve_term(system, rows, num_tokens * hidden * width, names[0], group, float(num_allreduces))
    gathered = _curve_term(system, rows, num_tokens * vocab * width, names[1], group, 0.5)
    return [reduced, gathered]


def _curve(system: System, setting: str) -> Curve:
    return system.curves.get(setting) or system.guesses.get(setting) or system.curves[system.reference]


def _curve_term(system: System, rows: Rows, size_bytes: Floats, name: str, group: str, count: float) -> Term:
    time_us = np.zeros(len(rows))
    source = np.zeros(len(rows), dtype=np.int8)
    variance = np.zeros(len(rows))
    size_ratio = np.log(np.clip(size_bytes / system.one_token_bytes, 1.0, _SIZE_EXPONENT_CAP))
    powers: dict[str, float | Floats] = {"comm": 1.0, "comm_exponent": size_ratio}
    explained = COMM_SPREAD[system.basis][0]
    for index, setting in enumerate(rows.settings):
        mask = rows.setting == index
        estimate = _curve(system, setting).at(size_bytes[mask])
        time_us[mask] = estimate.value
        source[mask] = estimate.source if setting in system.curves else np.maximum(estimate.source, ASSUMED)
        spread = np.log(np.maximum(estimate.high, 1e-9) / np.maximum(estimate.low, 1e-9)) / (2 * _NINETY)
        variance[mask] = spread**2 if system.basis == "measured" else np.maximum(spread**2 - explained**2, 0.0)
        if setting not in system.curves:
            powers[setting_parameter(setting)] = mask.astype(float)
            powers[setting_exponent(setting)] = mask * size_ratio
    return Term(name, group, time_us * count * 1e-3, powers, source, f"{count:g} x curve of the setting", variance)
