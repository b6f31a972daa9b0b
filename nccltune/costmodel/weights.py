"""Parameters and bytes of a model by part: what one rank streams from its memory in one forward, and what it holds.

Parts: attention, dense, shared_experts, routed_experts, router, lm_head (plus embedding and norms when counting).
Tensor parallelism as SGLang does it: column- and row-parallel matrices are divided by the ranks; the two MLA
down-projections, the sparse-attention indexer and the router are replicated; key/value heads are replicated when
there are fewer of them than ranks.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from nccltune.costmodel.estimate import Floats
from nccltune.errors import InputError
from nccltune.schemas.model import BYTES_PER_WEIGHT, Attention, Drafter, Model, Moe

_INDEXER_KEY_BYTES = 1 + 4 / 128  # fp8 with one fp32 scale per 128 values (DeepSeek-V3.2 report and its engines)
_LINEAR_STATE_BYTES = 4  # fp32 state (mamba_ssm_dtype of Qwen3.5's config.json)
_UNQUANTISED_BYTES = BYTES_PER_WEIGHT["bf16"]


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Parameters by part. ``active`` is what one token multiplies with: the embedding is a gather and left out."""

    total: float
    active: float
    by_part: dict[str, float] = field(default_factory=dict)


def parameter_counts(model: Model) -> ParameterCounts:
    """Count the parameters of the language model (no vision tower, no multi-token-prediction layers).

    Kimi-K2: 60 x 384 x 3 x 7168 x 2048 = 1014.7e9 routed, 6.2e9 attention, 2 x 163840 x 7168 embedding and head:
    1026e9 together, 31.7e9 active.
    """
    moe, h = model.moe, model.hidden_size
    head = float(model.vocab_size * h)
    by_part = {
        "attention": _attention_params(model),
        "dense": float(model.num_dense_layers * 3 * h * model.dense_intermediate_size),
        "shared_experts": float(moe.num_layers * 3 * h * moe.shared_intermediate_size) if moe else 0.0,
        "routed_experts": moe.num_layers * moe.num_experts * expert_params(moe, h) if moe else 0.0,
        "router": _router_params(moe, h) if moe else 0.0,
        "norms": float((2 * model.num_layers + 1) * h),
        "lm_head": 0.0 if model.tie_word_embeddings else head,
        "embedding": head,
    }
    total = sum(by_part.values())
    idle = moe.num_layers * (moe.num_experts - moe.top_k) * expert_params(moe, h) if moe else 0.0
    # A tied matrix is one tensor: counted once, and the head multiplies with it, so it is active.
    active = total - idle - (0.0 if model.tie_word_embeddings else head)
    return ParameterCounts(total, active, by_part)


def weight_bytes(model: Model, num_ranks: int, distinct_experts: ArrayLike) -> dict[str, Floats]:
    """Return the bytes of weights that one rank reads in one forward, by part, each of ``distinct_experts``' shape.

    ``distinct_experts`` is U(n) of :mod:`nccltune.costmodel.experts`. Routed experts:
    ``layers x U x 3 h I / ranks x bytes per weight``; everything else is read once, whatever the number of tokens.
    Kimi-K2.5 (int4 experts), 8 ranks: 6.0 GB at n = 1 (U = 8; attention 3.2, shared + routed 2.1), 10.3 GB at
    n = 4 (U = 31.0), 25.0 GB at n = 16 (U = 109.8).
    """
    _check_ranks(num_ranks)
    union = np.asarray(distinct_experts, dtype=float)
    moe, h, quantization = model.moe, model.hidden_size, model.quantization
    once = {
        "attention": _attention_params_per_rank(model, num_ranks) * BYTES_PER_WEIGHT[quantization.attention],
        "dense": model.num_dense_layers
        * (3 * h * model.dense_intermediate_size / num_ranks)
        * BYTES_PER_WEIGHT[quantization.dense],
        "shared_experts": moe.num_layers
        * (3 * h * moe.shared_intermediate_size / num_ranks)
        * BYTES_PER_WEIGHT[quantization.shared_experts]
        if moe
        else 0.0,
        "router": _router_params(moe, h) * _UNQUANTISED_BYTES if moe else 0.0,
        "lm_head": model.vocab_size * h / num_ranks * BYTES_PER_WEIGHT[quantization.lm_head],
    }
    result = {part: np.full(union.shape, size) for part, size in once.items()}
    per_expert = moe.num_layers * expert_params(moe, h) / num_ranks if moe else 0.0
    result["routed_experts"] = union * (per_expert * BYTES_PER_WEIGHT[quantization.routed_experts])
    return result


def resident_bytes(model: Model, num_ranks: int) -> float:
    """Return the bytes of weights that one rank holds: every expert, and its slice of the embedding."""
    num_experts = model.moe.num_experts if model.moe else 0
    streamed = sum(float(part) for part in weight_bytes(model, num_ranks, float(num_experts)).values())
    embedding = 0.0 if model.tie_word_embeddings else model.vocab_size * model.hidden_size / num_ranks * 2
    return streamed + embedding


def kv_bytes(model: Model, num_ranks: int, context_tokens: ArrayLike) -> Floats:
    """Return the bytes of KV cache that one rank reads per request and forward at ``context_tokens`` tokens.

    Assumes the kernel reads a request's cache once for all its query tokens. GQA: ``2 ceil(H_kv / ranks) d`` per
    token and layer; a windowed layer reads at most its window. MLA: ``kv_lora_rank + qk_rope_head_dim`` per token
    and layer on **every** rank (the latent is shared by all heads): Kimi-K2.5 in bf16 70,272 B per token. With a
    sparse-attention indexer the latent of at most ``indexer_topk`` tokens is read, plus one index key per token.
    A linear layer reads and writes a state of fixed size, divided by the ranks.
    """
    _check_ranks(num_ranks)
    tokens = np.asarray(context_tokens, dtype=float)
    if not (np.all(np.isfinite(tokens)) and np.all(tokens >= 0)):
        raise InputError("the context is not usable", "tokens must be finite and not negative", "correct it")
    attention = model.attention
    per_token = _kv_elements_per_token(attention, num_ranks) * model.quantization.kv_bytes_per_element
    attended = np.minimum(tokens, attention.indexer_topk) if attention.indexer_topk else tokens
    windowed = np.minimum(tokens, attention.sliding_window) if attention.num_windowed_layers else np.zeros_like(tokens)
    num_full_layers = model.num_layers - attention.num_windowed_layers - attention.num_linear_layers
    index_bytes = attention.indexer_head_dim * _INDEXER_KEY_BYTES if attention.indexer_topk else 0.0
    state = attention.linear_num_value_heads * attention.linear_key_head_dim * attention.linear_value_head_dim
    result: Floats = (
        per_token * (num_full_layers * attended + attention.num_windowed_layers * windowed)
        + num_full_layers * index_bytes * tokens
        + 2 * attention.num_linear_layers * (state * _LINEAR_STATE_BYTES / num_ranks)
    )
    return result


def drafter_parameter_counts(drafter: Drafter) -> ParameterCounts:
    """Count an EAGLE-3 head. ``active`` is one draft step: the layers and the head, without ``fc`` and embedding."""
    by_part = {
        "fc": float(drafter.num_fused_layers * drafter.target_hidden_size * drafter.hidden_size),
        "layer": _drafter_layer_params(drafter, 1),
        "lm_head": float(drafter.draft_vocab_size * drafter.hidden_size),
        "norms": float((3 * drafter.num_layers + 1) * drafter.hidden_size),
        "embedding": float(drafter.vocab_size * drafter.hidden_size),
    }
    total = sum(by_part.values())
    return ParameterCounts(total, total - by_part["fc"] - by_part["embedding"], by_part)


def drafter_weight_bytes(drafter: Drafter, num_ranks: int) -> dict[str, float]:
    """Return the bytes that one rank reads in one drafter forward: ``fc``, ``layer`` and ``lm_head``.

    ``fc`` (fused hidden states -> hidden) is a plain, replicated matrix and is used in the draft-extend forward
    only; a draft step feeds back the drafter's own hidden state (SGLang ``models/llama_eagle3.py``). Hidden 7168,
    three fused layers, bf16: fc is 3 x 7168 x 7168 x 2 = 308 MB on every rank; a head of 163,840 entries over 8
    ranks is 294 MB, of 32,000 entries 57 MB.
    """
    _check_ranks(num_ranks)
    size = BYTES_PER_WEIGHT[drafter.weight_format]
    return {
        "fc": drafter.num_fused_layers * drafter.target_hidden_size * drafter.hidden_size * _UNQUANTISED_BYTES,
        "layer": _drafter_layer_params(drafter, num_ranks) * size,
        "lm_head": drafter.draft_vocab_size * drafter.hidden_size / num_ranks * _UNQUANTISED_BYTES,
    }


def drafter_kv_bytes(drafter: Drafter, num_ranks: int, context_tokens: ArrayLike) -> Floats:
    """Return the bytes of the drafter's own KV cache (bf16) that one rank reads per request and drafter forward."""
    _check_ranks(num_ranks)
    tokens = np.asarray(context_tokens, dtype=float)
    result: Floats = drafter.num_layers * _kv_elements_per_token(drafter.attention, num_ranks) * 2.0 * tokens
    return result


def expert_params(moe: Moe, hidden_size: int) -> float:
    """Parameters of one routed expert: gate, up and down projections (and their biases where it has them)."""
    bias = 2 * moe.intermediate_size + hidden_size if moe.expert_bias else 0
    return float(3 * hidden_size * moe.intermediate_size + bias)


def _router_params(moe: Moe, hidden_size: int) -> float:
    return float(moe.num_layers * moe.num_experts * (hidden_size + (1 if moe.expert_bias else 0)))


def _attention_params(model: Model) -> float:
    return _attention_params_per_rank(model, 1)


def _attention_params_per_rank(model: Model, num_ranks: int) -> float:
    attention, h = model.attention, model.hidden_size
    num_softmax_layers = model.num_layers - attention.num_linear_layers
    per_layer = _softmax_params(attention, h, h, num_ranks)
    return num_softmax_layers * per_layer + attention.num_linear_layers * _linear_params(attention, h, num_ranks)


def _softmax_params(a: Attention, input_size: int, h: int, num_ranks: int) -> float:
    """Parameters of one attention layer on one rank; ``input_size`` is the width that enters the projections."""
    if a.kind == "mla":
        latent = a.kv_lora_rank + a.qk_rope_head_dim
        query_width = a.num_heads * (a.qk_nope_head_dim + a.qk_rope_head_dim)
        replicated = input_size * (a.q_lora_rank + latent)
        sharded = (
            (a.q_lora_rank or input_size) * query_width
            + a.kv_lora_rank * a.num_heads * (a.qk_nope_head_dim + a.v_head_dim)
            + a.num_heads * a.v_head_dim * h
        )
        # The indexer is replicated: queries from the query latent, one key and the head weights from the hidden state.
        indexer = (a.q_lora_rank or input_size) * a.indexer_num_heads * a.indexer_head_dim + input_size * (
            a.indexer_head_dim + a.indexer_num_heads
        )
        return replicated + sharded / num_ranks + (indexer if a.indexer_num_heads else 0.0)
    query_heads = a.num_heads * (2 if a.gated_output else 1) / num_ranks
    qkv_width = (query_heads + 2 * _kv_heads_per_rank(a, num_ranks)) * a.head_dim
    bias = (qkv_width if a.qkv_bias else 0.0) + (h if a.o_bias else 0.0)
    return input_size * qkv_width + a.num_heads * a.head_dim * h / num_ranks + bias


def _linear_params(a: Attention, h: int, num_ranks: int) -> float:
    """Gated delta net of Qwen3-Next and Qwen3.5: q, k, v and gate z in, one decay and one beta per value head, out."""
    key_width = a.linear_num_key_heads * a.linear_key_head_dim
    value_width = a.linear_num_value_heads * a.linear_value_head_dim
    return h * (2 * key_width + 3 * value_width + 2 * a.linear_num_value_heads) / num_ranks


def _kv_heads_per_rank(a: Attention, num_ranks: int) -> int:
    return -(-a.num_kv_heads // num_ranks)


def _kv_elements_per_token(a: Attention, num_ranks: int) -> int:
    if a.kind == "mla":
        return a.kv_lora_rank + a.qk_rope_head_dim
    return 2 * _kv_heads_per_rank(a, num_ranks) * a.head_dim


def _drafter_layer_params(drafter: Drafter, num_ranks: int) -> float:
    """Layers of the drafter on one rank; the first one reads embedding and hidden state side by side (width 2h)."""
    h = drafter.hidden_size
    mlp = drafter.num_layers * 3 * h * drafter.intermediate_size / num_ranks
    first = _softmax_params(drafter.attention, 2 * h, h, num_ranks)
    return mlp + first + (drafter.num_layers - 1) * _softmax_params(drafter.attention, h, h, num_ranks)


def _check_ranks(num_ranks: int) -> None:
    if num_ranks < 1:
        raise InputError(f"{num_ranks} ranks are not possible", "at least one rank holds the model", "give 1 or more")
