"""Turn a Hugging Face config.json into a model or drafter record. Known families are read exactly, others by the usual names."""

import json
from pathlib import Path
from typing import Any

from nccltune.errors import InputError
from nccltune.parse.hf_fields import Fields, text_part, validated
from nccltune.parse.hf_layers import attention_fields, read_moe, split_layers
from nccltune.parse.hf_quantization import quantization_from_config
from nccltune.parse.toml_writer import to_toml
from nccltune.schemas.model import MAX_LAYERS, Drafter, Model

__all__ = ["check_fits", "drafter_from_config", "looks_like_drafter", "model_from_config", "read_config", "to_toml"]

# Families whose layout was compared with their published config.json and modelling code.
KNOWN_TYPES = frozenset(
    {
        "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_k25", "glm_moe_dsa", "qwen2", "qwen2_moe", "qwen3",
        "qwen3_moe", "qwen3_next", "qwen3_5_moe_text", "qwen3_5_text", "gpt_oss", "glm4_moe", "minimax_m2", "llama4_text",
        "llama", "mistral", "mixtral",
    }
)  # fmt: skip
# State-space and other mixers whose weights this schema cannot count: better refused than priced as attention.
_UNSUPPORTED = ("hybrid_override_pattern", "linear_attn_config", "mamba_num_heads", "compress_ratios", "ssm_cfg")


def read_config(path: Path) -> dict[str, Any]:
    """Read a config.json; a ``hf_quant_config.json`` beside it (ModelOpt) is taken as its quantization_config."""
    document = _read_json(path)
    beside = path.with_name("hf_quant_config.json")
    if "quantization_config" not in document and beside.is_file():
        document["quantization_config"] = _read_json(beside)
    return document


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist", "", "check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}", str(error), "give a config.json") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not JSON", str(error), "give the model's config.json") from error
    if not isinstance(document, dict):
        raise InputError(f"{path} is not a config.json", "it holds no JSON object", "give the model's config.json")
    return document


def check_fits(drafter: Drafter, target: Model) -> None:
    """Raise InputError if the draft head cannot belong to the target (hidden size or vocabulary differ)."""
    for what, head, model in (
        ("target hidden size", drafter.target_hidden_size, target.hidden_size),
        ("vocabulary", drafter.vocab_size, target.vocab_size),
    ):
        if head != model:
            raise InputError(
                f"this draft head does not fit {target.name}",
                f"its {what} is {head}, the model's is {model}",
                "name the model it was trained for with --target",
            )


def model_from_config(document: object, *, name: str, source: str, title: str = "") -> Model:
    """Return the model that a config.json describes; what had to be assumed is in its ``notes``.

    Raises InputError naming the missing fields, or why this architecture cannot be described.
    """
    if looks_like_drafter(document):
        raise InputError("this config.json is that of an EAGLE draft head", "its architecture says so", "use --drafter")
    fields = Fields(text_part(document))
    _refuse_unsupported(fields)
    model_type = fields.text("model_type")
    num_layers = fields.required("num_hidden_layers", "n_layer", "num_layers")
    if num_layers > MAX_LAYERS:  # layers are listed one by one below
        raise InputError(f"{num_layers} layers are not possible", f"the largest models have some hundred; at most {MAX_LAYERS} are read", "correct the file")  # fmt: skip
    hidden_size = fields.required("hidden_size", "n_embd", "d_model")
    vocab_size = fields.required("vocab_size", "padded_vocab_size")
    moe = read_moe(fields, model_type, num_layers)
    num_dense = num_layers - (moe.num_layers if moe else 0)
    attention = attention_fields(fields, model_type, num_layers, hidden_size)
    fields.check_complete("a language model")
    outer = document if isinstance(document, dict) else {}
    architectures = list(Fields(outer).architectures()) or list(fields.architectures())
    if model_type not in KNOWN_TYPES:
        fields.notes.append(
            f"model_type {model_type or '(none)'!r} is not one this version knows: read by the usual field names, check the totals"
        )
    if "vision_config" in outer or "audio_config" in outer:
        fields.notes.append("vision and audio parts are left out: they do not run while text is decoded")
    moe_layers, dense_layers = split_layers(fields, model_type, num_layers, moe)
    quantization = quantization_from_config(
        fields,
        {
            "attention": list(range(num_layers)),
            "dense": dense_layers,
            "shared_experts": moe_layers if moe and moe.num_shared_experts else [],
            "routed_experts": moe_layers,
        },
    )
    return validated(
        Model,
        {
            "name": name,
            "title": title or name,
            "hf_architecture": architectures[0] if architectures else "",
            "num_layers": num_layers,
            "hidden_size": hidden_size,
            "vocab_size": vocab_size,
            "num_dense_layers": num_dense,
            "dense_intermediate_size": _dense_width(fields, model_type) if num_dense else 0,
            "tie_word_embeddings": fields.flag("tie_word_embeddings"),
            "attention": attention,
            "moe": moe,
            "quantization": quantization,
            "source": [source],
            "notes": fields.notes,
        },
    )


def drafter_from_config(document: object, *, name: str, target: str, source: str, title: str = "") -> Drafter:
    """Return the EAGLE-3 head that a config.json describes (``LlamaForCausalLMEagle3`` and its relatives).

    Without ``draft_vocab_size`` the head covers the whole vocabulary; without a list of captured layers three
    hidden states are fused, as SGLang and vLLM assume.
    """
    if not looks_like_drafter(document):
        raise InputError(
            "this config.json is not that of an EAGLE-3 draft head",
            "no EAGLE architecture, draft_vocab_size or eagle_config in it",
            "leave --drafter out for a model, or give the draft head's own config.json",
        )
    assert isinstance(document, dict)
    nested = document.get("transformer_layer_config")  # speculators format
    fields = Fields({**document, **nested} if isinstance(nested, dict) else text_part(document))
    hidden_size = fields.required("hidden_size")
    vocab_size = fields.required("vocab_size")
    intermediate_size = fields.required("intermediate_size")
    num_layers = fields.count("num_hidden_layers", default=1) or 1
    attention = attention_fields(fields, fields.text("model_type"), num_layers, hidden_size)
    fields.check_complete("an EAGLE-3 draft head")
    quantization = quantization_from_config(fields, {"attention": list(range(num_layers))})
    return validated(
        Drafter,
        {
            "name": name,
            "title": title or name,
            "target": target,
            "num_layers": num_layers,
            "hidden_size": hidden_size,
            "target_hidden_size": fields.count("target_hidden_size") or hidden_size,
            "num_fused_layers": _num_fused_layers(fields),
            "intermediate_size": intermediate_size,
            "vocab_size": vocab_size,
            "draft_vocab_size": fields.count("draft_vocab_size") or vocab_size,
            "attention": attention,
            "weight_format": quantization.attention,
            "source": [source],
            "notes": fields.notes,
        },
    )


def looks_like_drafter(document: object) -> bool:
    """True if a config.json is that of an EAGLE draft head."""
    if not isinstance(document, dict):
        return False
    names = [a for a in document.get("architectures") or [] if isinstance(a, str)]
    return any("eagle" in n.lower() for n in names) or any(
        document.get(key) is not None
        for key in ("draft_vocab_size", "eagle_config", "eagle_aux_hidden_state_layer_ids")
    )


def _num_fused_layers(fields: Fields) -> int:
    eagle = fields.values.get("eagle_config")
    inner = Fields(eagle) if isinstance(eagle, dict) else fields
    layers = inner.items("eagle_aux_hidden_state_layer_ids") or fields.items("eagle_aux_hidden_state_layer_ids")
    return len(layers) or fields.count("num_aux_hidden_states") or 3


def _refuse_unsupported(fields: Fields) -> None:
    for key in _UNSUPPORTED:
        if fields.has(key):
            raise InputError(
                "this architecture cannot be described",
                f"'{key}' stands for layers that are neither GQA nor MLA attention nor gated linear attention",
                "write a models/ file by hand with the nearest shape, or use a related model",
            )


def _dense_width(fields: Fields, model_type: str) -> int:
    names = ("intermediate_size_mlp", "intermediate_size") if model_type == "llama4_text" else ("intermediate_size",)
    width = fields.required(*names, "ffn_hidden_size", "n_inner")
    fields.check_complete("a language model")
    return width
