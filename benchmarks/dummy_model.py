"""Write config folders of a target and an EAGLE-3 drafter for servers with dummy weights (--load-format dummy); no weights.

    python benchmarks/dummy_model.py OUT [--layers 61] [--hidden 7168] [--experts 128] [--gpus 8] [--gpu-gb 141]

Layers and hidden size decide the all-reduces of a forward and their sizes; the defaults are those of Kimi-K2.5. Its 384
experts in bf16 fit no eight GPUs of today, so the number of experts is what gives way: it is refused where the weights
would not fit. Shapes are written as Qwen3-MoE, which SGLang loads with any attention back end.
"""

import argparse
import json
import sys
from pathlib import Path

_WEIGHTS_SHARE = 0.80  # of the GPU memory: the rest is KV cache, graphs and the drafter
_TOP_K, _HEAD_DIM, _VOCAB, _DRAFT_VOCAB = 8, 128, 151936, 32000


def target(layers: int, hidden: int, experts: int, expert_width: int) -> dict[str, object]:
    """Config of the target."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": False, "decoder_sparse_step": 1,
        "head_dim": _HEAD_DIM, "hidden_act": "silu", "hidden_size": hidden, "intermediate_size": 3 * hidden, "max_position_embeddings": 40960,
        "mlp_only_layers": [], "moe_intermediate_size": expert_width, "norm_topk_prob": True, "num_attention_heads": 64, "num_experts": experts,
        "num_experts_per_tok": _TOP_K, "num_hidden_layers": layers, "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": _VOCAB, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip


def drafter(hidden: int) -> dict[str, object]:
    """Config of a one-layer EAGLE-3 head of the same hidden size."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "attention_bias": False, "head_dim": _HEAD_DIM, "hidden_act": "silu",
        "hidden_size": hidden, "intermediate_size": 3 * hidden, "max_position_embeddings": 40960, "num_attention_heads": 64,
        "num_hidden_layers": 1, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "vocab_size": _VOCAB, "draft_vocab_size": _DRAFT_VOCAB, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip


def num_bytes(layers: int, hidden: int, experts: int, expert_width: int) -> float:
    """Bytes of the bf16 weights: experts, attention (64 query and 8 key-value heads), embedding and head."""
    attention = hidden * _HEAD_DIM * (2 * 64 + 2 * 8)
    return 2.0 * (layers * (3 * hidden * expert_width * experts + attention) + 2 * _VOCAB * hidden)


def main(argv: list[str] | None = None) -> int:
    """Write the two folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=61)
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--expert-width", type=int, default=2048)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--gpu-gb", type=float, default=141.0, help="memory of one GPU, 10^9 bytes")
    asked = parser.parse_args(argv)
    weights, room = num_bytes(asked.layers, asked.hidden, asked.experts, asked.expert_width), _WEIGHTS_SHARE * asked.gpus * asked.gpu_gb * 1e9  # fmt: skip
    if weights > room:
        print(f"{weights / 1e9:.0f} GB of weights do not fit: {room / 1e9:.0f} GB of {asked.gpus} GPUs are for them; fewer --experts or --layers", file=sys.stderr)  # fmt: skip
        return 2
    for name, config in (("target", target(asked.layers, asked.hidden, asked.experts, asked.expert_width)), ("target-eagle3", drafter(asked.hidden))):  # fmt: skip
        (asked.out / name).mkdir(parents=True, exist_ok=True)
        (asked.out / name / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    print(
        f"{asked.out}/target and target-eagle3: {weights / 1e9:.0f} GB of bf16 weights, {2 * asked.layers + 1} all-reduces of {2 * asked.hidden} bytes a token"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
