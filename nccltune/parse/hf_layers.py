"""Read the shape of the layers from a config.json: attention, which layers are experts, windowed or linear."""

from typing import Any

from nccltune.parse.hf_fields import Fields, validated
from nccltune.schemas.model import Moe

_QKV_BIAS_TYPES = frozenset({"qwen2", "qwen2_moe"})  # always biased, no field says so
_O_BIAS_TYPES = frozenset({"llama", "gpt_oss"})  # attention_bias covers the output projection too
_INTERMEDIATE_IS_EXPERT = frozenset({"mixtral", "gpt_oss", "minimax_m2", "llama4_text"})
_LLAMA4_FULL_EVERY = 4  # no_rope_layer_interval of transformers' Llama4TextConfig: those layers see the whole context


def attention_fields(fields: Fields, model_type: str, num_layers: int, hidden_size: int) -> dict[str, Any]:
    """Return the keywords of an Attention record (validated with the whole)."""
    num_heads = fields.required("num_attention_heads", "n_head")
    biased = fields.flag("attention_bias")
    shared: dict[str, Any] = {"num_heads": num_heads, **_layer_kinds(fields, model_type, num_layers)}
    if fields.count("kv_lora_rank"):
        return shared | {
            "kind": "mla",
            "q_lora_rank": fields.count("q_lora_rank"),
            "kv_lora_rank": fields.count("kv_lora_rank"),
            "qk_nope_head_dim": fields.required("qk_nope_head_dim"),
            "qk_rope_head_dim": fields.required("qk_rope_head_dim"),
            "v_head_dim": fields.required("v_head_dim"),
            "indexer_num_heads": fields.count("index_n_heads"),
            "indexer_head_dim": fields.count("index_head_dim"),
            "indexer_topk": fields.count("index_topk"),
        }
    return shared | {
        "kind": "gqa",
        "num_kv_heads": fields.count("num_key_value_heads", "multi_query_group_num", "num_kv_heads") or num_heads,
        "head_dim": fields.count("head_dim", "kv_channels") or hidden_size // num_heads,
        "qkv_bias": biased or model_type in _QKV_BIAS_TYPES,
        "o_bias": biased and model_type in _O_BIAS_TYPES,
        "gated_output": fields.flag("attn_output_gate") or model_type == "qwen3_next",
    }


def _layer_kinds(fields: Fields, model_type: str, num_layers: int) -> dict[str, int]:
    """Count windowed and linear layers from ``layer_types`` or, where a file lacks it, from the family's rule."""
    kinds = [str(kind) for kind in fields.items("layer_types")][:num_layers]
    num_linear = sum(kind == "linear_attention" for kind in kinds)
    num_windowed = sum(kind in ("sliding_attention", "chunked_attention") for kind in kinds)
    window = fields.count("sliding_window") or fields.count("attention_chunk_size")
    if not kinds:
        interval = fields.count("full_attention_interval")
        if interval > 1 and fields.has("linear_num_value_heads"):
            num_linear = num_layers - num_layers // interval
        elif model_type == "llama4_text" and window:
            num_windowed = num_layers - num_layers // _LLAMA4_FULL_EVERY
        elif model_type == "gpt_oss" and window:
            num_windowed = num_layers - num_layers // 2
        elif window and fields.values.get("use_sliding_window") is not False:
            num_windowed = num_layers
            fields.notes.append(f"sliding_window without layer_types: all {num_layers} layers are taken as windowed")
    if fields.text("model_type") == "llama4_text" and num_windowed:
        fields.notes.append("chunked attention is priced as a full chunk; a token early in its chunk reads less")
    result = {"num_windowed_layers": num_windowed, "sliding_window": window} if num_windowed and window else {}
    if num_linear:
        result |= {
            "num_linear_layers": num_linear,
            "linear_num_key_heads": fields.required("linear_num_key_heads"),
            "linear_key_head_dim": fields.required("linear_key_head_dim"),
            "linear_num_value_heads": fields.required("linear_num_value_heads"),
            "linear_value_head_dim": fields.required("linear_value_head_dim"),
        }
    return result


def _num_experts(fields: Fields) -> int:
    return fields.count("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts", "num_routed_experts")


def read_moe(fields: Fields, model_type: str, num_layers: int) -> Moe | None:
    """Return the experts, None for a dense model (or when a required field is missing: the caller's check names it)."""
    num_experts = _num_experts(fields)
    num_moe_layers = len(_moe_layers(fields, model_type, num_layers)) if num_experts > 1 else 0
    if not num_moe_layers:
        return None
    widths = ["moe_intermediate_size", "expert_ffn_hidden_size"]
    if model_type in _INTERMEDIATE_IS_EXPERT or not fields.has(*widths):
        widths.append("intermediate_size")
    width = fields.required(*widths)
    # "top_k" of a config.json is a sampling default, not the router's.
    top_k = fields.required(
        "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "top_k_experts"
    )
    num_shared, shared_width = _shared_experts(fields, model_type, width)
    if fields.missing:
        return None
    return validated(
        Moe,
        {
            "num_layers": num_moe_layers,
            "num_experts": num_experts,
            "top_k": top_k,
            "intermediate_size": width,
            "num_shared_experts": num_shared,
            "shared_intermediate_size": shared_width,
            "expert_bias": model_type == "gpt_oss",
        },
    )


def _shared_experts(fields: Fields, model_type: str, width: int) -> tuple[int, int]:
    """Return number and total width of the shared experts; files give either a count or a width."""
    if model_type == "llama4_text":
        return 1, width  # Llama4TextMoe always has one, as wide as a routed expert
    total = fields.count("shared_expert_intermediate_size", "shared_intermediate_size")
    if total:
        return 1, total
    count = fields.count("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
    return count, count * width


def _moe_layers(fields: Fields, model_type: str, num_layers: int) -> list[int]:
    kinds = fields.items("mlp_layer_types")
    if kinds:
        return [i for i, kind in enumerate(kinds[:num_layers]) if kind == "sparse"]
    if fields.has("moe_layers"):
        return [int(i) for i in fields.items("moe_layers") if isinstance(i, int) and 0 <= i < num_layers]
    frequency = fields.values.get("moe_layer_freq")
    if isinstance(frequency, list):
        return [i for i, flag in enumerate(frequency[:num_layers]) if flag]
    first = fields.count("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers")
    if model_type == "llama4_text":
        step = fields.count("interleave_moe_layer_step", default=1) or 1
        return list(range(step - 1, num_layers, step))
    step = fields.count("decoder_sparse_step", default=1) or 1
    dense_only = set(fields.items("mlp_only_layers"))
    every = fields.count("moe_layer_freq", default=1) or 1
    return [i for i in range(first, num_layers) if i not in dense_only and (i + 1) % step == 0 and i % every == 0]


def split_layers(fields: Fields, model_type: str, num_layers: int, moe: Moe | None) -> tuple[list[int], list[int]]:
    """Return the numbers of the layers with experts and of the dense ones."""
    moe_layers = _moe_layers(fields, model_type, num_layers) if moe else []
    chosen = set(moe_layers)
    return moe_layers, [i for i in range(num_layers) if i not in chosen]
