"""Hugging Face config.json of each family, their quantization, draft heads, broken files, and the TOML round trip."""

import json
import tomllib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nccltune import registry
from nccltune.costmodel.weights import parameter_counts
from nccltune.errors import InputError
from nccltune.parse import hf_config
from nccltune.parse.hf_config import drafter_from_config, model_from_config, to_toml
from nccltune.parse.toml_writer import dumps
from nccltune.schemas.model import Drafter, Model

MLA = {
    "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 64, "num_key_value_heads": 64,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "n_routed_experts": 384, "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 2048,
    "intermediate_size": 18432, "first_k_dense_replace": 1, "moe_layer_freq": 1, "vocab_size": 163840, "top_k": 50,
}  # fmt: skip
KIMI_K25 = {
    "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "vision_config": {"patch_size": 14},
    "text_config": {**MLA, "model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"], "quantization_config": {
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}}},
        "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"],
    }},
}  # fmt: skip
QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
    "moe_intermediate_size": 768, "intermediate_size": 6144, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "sliding_window": None, "use_sliding_window": False, "vocab_size": 151936, "tie_word_embeddings": False,
}  # fmt: skip
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32, "attention_bias": True,
    "num_experts_per_tok": 4, "intermediate_size": 2880, "vocab_size": 201088, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]},
}  # fmt: skip
LLAMA4 = {
    "architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4", "text_config": {
        "model_type": "llama4_text", "hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40,
        "num_key_value_heads": 8, "head_dim": 128, "num_local_experts": 128, "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 2, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "attention_chunk_size": 8192, "vocab_size": 202048},
}  # fmt: skip
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
}  # fmt: skip
EAGLE3 = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 2880, "num_hidden_layers": 1,
    "head_dim": 64, "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 17280,
    "vocab_size": 201088, "draft_vocab_size": 32000,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 17, 33]},
}  # fmt: skip


def read(document, name="m") -> Model:
    return model_from_config(document, name=name, source="test")


SHAPE = ("num_layers", "hidden_size", "vocab_size", "num_dense_layers", "attention", "moe", "quantization")


@pytest.mark.parametrize(
    ("document", "shipped"),
    [
        (KIMI_K25, "kimi-k2.5"),
        (QWEN3_MOE, "qwen3-30b-a3b"),
        (GPT_OSS, "gpt-oss-20b"),
        (LLAMA4, "llama-4-maverick"),
        (LLAMA, "llama-3.1-8b"),
    ],
)
def test_a_family_reads_as_its_shipped_file(document, shipped):
    got, expected = read(document), registry.load_model(shipped)
    for field in SHAPE:
        assert getattr(got, field) == getattr(expected, field), field
    assert parameter_counts(got) == parameter_counts(expected)


def test_nothing_is_assumed_silently_about_known_families():
    for document in (QWEN3_MOE, GPT_OSS, LLAMA):
        assert read(document).notes == []


def test_deepseek_v32_has_an_indexer_and_fp8_everywhere_but_the_head():
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    model = read({**MLA, "model_type": "deepseek_v32", "index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048,
                  "first_k_dense_replace": 3, "quantization_config": fp8})  # fmt: skip
    assert (model.attention.indexer_num_heads, model.attention.indexer_topk) == (64, 2048)
    assert model.num_dense_layers == 3
    quantization = model.quantization
    parts = {quantization.attention, quantization.dense, quantization.shared_experts, quantization.routed_experts}
    assert parts == {"fp8-block128"}
    assert quantization.lm_head == "bf16"


def test_hybrid_model_counts_linear_layers_and_the_gate():
    model = read({**QWEN3_MOE, "model_type": "qwen3_next", "full_attention_interval": 4, "linear_num_key_heads": 16,
                  "linear_key_head_dim": 128, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
                  "shared_expert_intermediate_size": 512})  # fmt: skip
    assert model.attention.num_linear_layers == 36
    assert model.attention.gated_output
    assert (model.moe.num_shared_experts, model.moe.shared_intermediate_size) == (1, 512)


def test_dense_layers_between_expert_layers():
    model = read({**QWEN3_MOE, "decoder_sparse_step": 2, "mlp_only_layers": [1]})
    assert (model.moe.num_layers, model.num_dense_layers, model.dense_intermediate_size) == (23, 25, 6144)
    listed = read({**QWEN3_MOE, "moe_layer_freq": [0] + [1] * 47})
    assert listed.num_dense_layers == 1


QUANTIZED = [
    ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4-g128", "int4-g128"),
    ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "int8", "int8"),
    ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "fp8", "fp8"),
    ({"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["gate", "lm_head"]},
     "fp8-block128", "fp8-block128"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", *(f"model.layers.{i}.self_attn*" for i in range(48))]},
     "bf16", "nvfp4-g16"),
    ({"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["*self_attn*"]}}, "bf16", "nvfp4-g16"),
    ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}},
     "fp8", "fp8"),
    ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}},
      "ignore": ["re:.*self_attn.*"]}, "bf16", "nvfp4-g16"),
    ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}}, "exclude": ["*self_attn*"]}, "bf16", "mxfp4-g32"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "attention", "experts"), QUANTIZED)
def test_quantization_methods(config, attention, experts):
    quantization = read({**QWEN3_MOE, "quantization_config": config}).quantization
    assert (quantization.attention, quantization.routed_experts, quantization.lm_head) == (attention, experts, "bf16")


def test_gate_in_an_ignore_list_does_not_free_gate_proj():
    config = {"quant_method": "fp8", "modules_to_not_convert": ["down", "gate", "model.layers.1"]}
    model = read({**QWEN3_MOE, "quantization_config": config})
    assert model.quantization.routed_experts == "fp8"
    assert any("1 of 48 layers are not quantized" in note for note in model.notes)


def test_eight_bit_kv_cache_is_read():
    config = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    assert read({**LLAMA, "quantization_config": config}).quantization.kv_bytes_per_element == 1.0


@pytest.mark.parametrize(
    "config",
    [{"quant_method": "bitsandbytes"}, {"quant_method": "awq", "bits": 3}, {}, "fp8",
     {"quant_method": "compressed-tensors", "config_groups": {}}, {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}],
)  # fmt: skip
def test_unknown_quantization_is_refused_not_guessed(config):
    with pytest.raises(InputError):
        read({**LLAMA, "quantization_config": config})


def test_unknown_family_with_the_usual_fields_is_read_with_a_note():
    model = read({**LLAMA, "model_type": "brand_new"})
    assert model.hidden_size == 4096
    assert "brand_new" in model.notes[0]


def test_missing_fields_are_all_named():
    with pytest.raises(InputError) as caught:
        read({"model_type": "llama", "hidden_size": 64})
    for field in ("num_hidden_layers", "vocab_size", "num_attention_heads"):
        assert field in caught.value.why
    with pytest.raises(InputError, match="intermediate_size"):
        read({k: v for k, v in LLAMA.items() if k != "intermediate_size"})


@pytest.mark.parametrize(
    "change",
    [{"hidden_size": "4096"}, {"hidden_size": -1}, {"hidden_size": 0}, {"num_hidden_layers": 1.5}, {"vocab_size": True},
     {"num_hidden_layers": float("nan")}, {"hidden_size": 10**30}, {"layer_types": "full"}, {"attention_bias": "yes"},
     {"hybrid_override_pattern": "M*M"}, {"architectures": ["LlamaForCausalLMEagle3"]}],
)  # fmt: skip
def test_wrong_values_are_one_clear_error(change):
    with pytest.raises(InputError):
        read({**LLAMA, **change})


@pytest.mark.parametrize("document", [[], "text", 3, None])
def test_what_is_no_object_is_refused(document):
    with pytest.raises(InputError):
        read(document)


def test_more_experts_per_token_than_experts_is_refused():
    with pytest.raises(InputError, match="top_k"):
        read({**QWEN3_MOE, "num_experts_per_tok": 200})


def test_draft_head():
    head = drafter_from_config(EAGLE3, name="d", target="gpt-oss-120b", source="test")
    shipped = registry.load_drafter("gpt-oss-120b-eagle3")
    for field in ("hidden_size", "intermediate_size", "draft_vocab_size", "num_fused_layers", "attention"):
        assert getattr(head, field) == getattr(shipped, field)
    full = {k: v for k, v in EAGLE3.items() if k != "draft_vocab_size"}
    assert drafter_from_config(full, name="d", target="t", source="s").draft_vocab_size == 201088


def test_draft_head_in_speculators_form():
    inner = {k: v for k, v in EAGLE3.items() if k not in ("architectures", "draft_vocab_size", "eagle_config")}
    outer = {"architectures": ["Eagle3Speculator"], "draft_vocab_size": 32000, "transformer_layer_config": inner}
    head = drafter_from_config(outer, name="d", target="t", source="s")
    assert (head.draft_vocab_size, head.intermediate_size, head.num_fused_layers) == (32000, 17280, 3)


def test_a_model_is_no_draft_head_and_heads_must_fit():
    with pytest.raises(InputError, match="draft head"):
        drafter_from_config(LLAMA, name="d", target="t", source="s")
    head = drafter_from_config(EAGLE3, name="d", target="t", source="s")
    hf_config.check_fits(head, registry.load_model("gpt-oss-20b"))
    with pytest.raises(InputError, match="does not fit"):
        hf_config.check_fits(head, registry.load_model("kimi-k2.5"))


def test_read_config_takes_bom_and_the_file_beside(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(QWEN3_MOE).encode())
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4", "exclude_modules": []}}')
    assert read(hf_config.read_config(path)).quantization.routed_experts == "nvfp4-g16"


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe\x00{", b"[" * 100_000])
def test_read_config_refuses_broken_files(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InputError):
        hf_config.read_config(path)


def test_toml_round_trips_every_shipped_file():
    for kind, cls in (("model", Model), ("drafter", Drafter)):
        for path in registry.names(kind).values():
            record = registry.load_file(path, kind)
            document = tomllib.loads(to_toml(record))
            assert (document.pop("schema"), document.pop("schema_version")) == (f"nccltune.{kind}", 1)
            assert cls.model_validate(document) == record


SCALARS = st.one_of(st.text(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.booleans())


@example({"bytes": 1.591432337932e18})
@given(
    st.dictionaries(
        st.text(),
        st.one_of(SCALARS, st.lists(SCALARS, max_size=4), st.dictionaries(st.text(), SCALARS, max_size=3)),
        max_size=6,
    )
)
def test_toml_writer_round_trips_anything(document):
    text = dumps(document)
    assert text.isascii()
    assert tomllib.loads(text) == document


@pytest.mark.parametrize(
    "change", [{"num_hidden_layers": 10**9}, {"num_local_experts": 10**8}, {"num_key_value_heads": 64}]
)
def test_sizes_that_no_model_has_are_refused_before_they_fill_the_memory(change):
    config = {
        "model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
    }  # fmt: skip
    hf_config.model_from_config(config, name="fits", source="test")
    with pytest.raises(InputError):
        hf_config.model_from_config(config | change, name="broken", source="test")
