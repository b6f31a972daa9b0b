"""Parameters and bytes: published totals of every shipped file, worked numbers, and how ranks divide them."""

import numpy as np
import pytest

from nccltune import registry
from nccltune.costmodel.describe import compare_published
from nccltune.costmodel.experts import distinct_experts
from nccltune.costmodel.weights import (
    drafter_kv_bytes,
    drafter_parameter_counts,
    drafter_weight_bytes,
    kv_bytes,
    parameter_counts,
    resident_bytes,
    weight_bytes,
)
from nccltune.errors import InputError
from nccltune.schemas.model import Attention, Model, Moe, Quantization

SHIPPED = sorted(p.stem for p in (registry._PACKAGE.parent / "models").glob("*.toml"))


def total(parts: dict) -> np.ndarray:
    return sum(parts.values())


@pytest.mark.parametrize("name", SHIPPED)
def test_computed_parameters_match_the_published_ones(name):
    rows = compare_published(registry.load_model(name))
    assert rows, f"{name} has no published total to compare with"
    for what, computed, published, tolerance in rows:
        assert tolerance <= 0.05, "a tolerance above 5% checks nothing"
        assert computed == pytest.approx(published, rel=tolerance), what


def test_every_published_total_says_why_it_has_its_tolerance():
    for name in SHIPPED:
        published = registry.load_model(name).published
        assert published is not None, name
        assert published.note, name
        assert published.source, name


def test_kimi_k25_bytes_per_rank():
    # Worked by hand in bytes per rank, 8 ranks: attention 61 x (15.14e6 replicated + 85.98e6 / 8) x 2 = 3.16e9;
    # shared 60 x 44.04e6 x 2 / 8 = 0.66e9; routed at n = 1: 60 x 8 x 44.04e6 x 0.5625 / 8 = 1.49e9;
    # router 60 x 384 x 7168 x 2 = 0.33e9; head 163840 x 7168 x 2 / 8 = 0.29e9; dense 0.10e9. Together 6.03e9.
    model = registry.load_model("kimi-k2.5")
    parts = weight_bytes(model, 8, distinct_experts(model, [1, 2, 4, 6, 8, 16]))
    assert total(parts) / 1e9 == pytest.approx([6.0, 7.5, 10.3, 13.0, 15.6, 25.0], abs=0.06)
    assert parts["attention"][0] == pytest.approx(3.158e9, rel=1e-3)
    assert parts["routed_experts"][0] == pytest.approx(1.486e9, rel=1e-3)


def test_one_rank_reading_every_expert_reads_the_whole_model():
    for name in ("kimi-k2.5", "qwen3-30b-a3b", "llama-3.1-8b", "glm-5", "qwen3.5-397b-a17b", "llama-4-maverick"):
        model = registry.load_model(name).model_copy(update={"quantization": Quantization()})
        counts = parameter_counts(model)
        read = counts.total - counts.by_part["embedding"] - counts.by_part["norms"]
        experts = model.moe.num_experts if model.moe else 0
        assert total(weight_bytes(model, 1, experts)) == pytest.approx(2 * read, rel=1e-4), name
        assert resident_bytes(model, 1) == pytest.approx(2 * (counts.total - counts.by_part["norms"]), rel=1e-4)


def gqa(num_kv_heads: int, **more) -> Model:
    attention = Attention(kind="gqa", num_heads=8, num_kv_heads=num_kv_heads, head_dim=4, **more)
    return Model(
        name="t", title="t", num_layers=2, hidden_size=32, vocab_size=64, num_dense_layers=2,
        dense_intermediate_size=16, attention=attention, source=["made up for the test"],
    )  # fmt: skip


def test_kv_heads_are_replicated_when_there_are_fewer_than_ranks():
    # q + k + v + o per layer and rank: 32 x (8/r + 2 kv/r) x 4 + 8 x 4 x 32 / r, two bytes, two layers
    assert weight_bytes(gqa(8), 8, 0)["attention"] == pytest.approx(2 * 2 * (32 * 3 * 4 + 128))
    assert weight_bytes(gqa(2), 8, 0)["attention"] == pytest.approx(2 * 2 * (32 * 3 * 4 + 128))  # one head each still
    assert weight_bytes(gqa(2), 2, 0)["attention"] == pytest.approx(2 * 2 * (32 * (4 + 2) * 4 + 512))
    # KV read: 2 x heads per rank x 4 x 2 bytes x 2 layers per token
    assert kv_bytes(gqa(8), 8, 10) == pytest.approx(10 * 2 * 1 * 4 * 2 * 2)
    assert kv_bytes(gqa(2), 8, 10) == kv_bytes(gqa(8), 8, 10)


def test_windowed_layers_read_at_most_their_window():
    model = gqa(8, sliding_window=100, num_windowed_layers=1)
    per_token = 2 * 8 * 4 * 2
    assert kv_bytes(model, 1, [50, 1000]) == pytest.approx([2 * 50 * per_token, (1000 + 100) * per_token])


def test_mla_cache_is_not_divided_by_the_ranks():
    model = registry.load_model("kimi-k2.5")
    assert kv_bytes(model, 1, 1) == kv_bytes(model, 8, 1) == 61 * (512 + 64) * 2  # 70,272 B


def test_sparse_attention_reads_its_top_k_and_every_index_key():
    # 61 layers x (min(ctx, 2048) x 576 x 2 + ctx x 128 x (1 + 4/128)); 10,000 tokens: 61 x (2,359,296 + 1,320,000)
    model = registry.load_model("deepseek-v3.2")
    assert kv_bytes(model, 8, 10_000) == pytest.approx(61 * (2048 * 1152 + 10_000 * 132))
    assert kv_bytes(registry.load_model("deepseek-v3"), 8, 10_000) > kv_bytes(model, 8, 10_000)


def test_linear_layers_do_not_grow_with_the_context():
    model = registry.load_model("qwen3.5-397b-a17b")
    grown = kv_bytes(model, 8, 2000) - kv_bytes(model, 8, 1000)
    assert grown == pytest.approx(1000 * 15 * 2 * 1 * 256 * 2)  # only the 15 full layers; 2 KV heads replicated
    assert kv_bytes(model, 1, 0) == pytest.approx(2 * 45 * 64 * 128 * 128 * 4)  # state read and written, fp32


def test_biases_are_counted():
    bare, biased = registry.load_model("gpt-oss-20b"), registry.load_model("gpt-oss-20b")
    bare = bare.model_copy(update={"moe": bare.moe.model_copy(update={"expert_bias": False})})
    # per layer: 32 experts x (2 x 2880 + 2880) and 32 router biases
    more = parameter_counts(biased).total - parameter_counts(bare).total
    assert more == pytest.approx(24 * (32 * 3 * 2880 + 32))


def test_tied_embedding_is_one_matrix():
    tied = gqa(8).model_copy(update={"tie_word_embeddings": True})
    assert parameter_counts(gqa(8)).total - parameter_counts(tied).total == 64 * 32
    assert parameter_counts(tied).active == parameter_counts(gqa(8)).active


def test_drafter_bytes_by_hand():
    # costmodel of an EAGLE-3 head, h = 7168: fc 3 x 7168^2 x 2 = 308 MB on each rank; head 163840 x 7168 x 2 / 8 = 294 MB
    drafter = registry.load_drafter("kimi-k2.5-eagle3")
    parts = drafter_weight_bytes(drafter, 8)
    assert parts["fc"] == 3 * 7168**2 * 2 == drafter_weight_bytes(drafter, 1)["fc"]
    assert parts["lm_head"] == pytest.approx(294e6, rel=2e-3)
    # layer: q, k, v from 14336, o, and 3 x 7168 x 12288 MLP
    layer = 2 * 7168 * 3 * 64 * 128 + 64 * 128 * 7168 + 3 * 7168 * 12288
    assert parts["layer"] == pytest.approx(layer * 2 / 8)
    assert drafter_parameter_counts(drafter).by_part["layer"] == pytest.approx(layer)
    assert drafter_kv_bytes(drafter, 8, 100) == pytest.approx(100 * 2 * 8 * 128 * 2)


def test_moe_needs_arrays_of_any_shape_and_at_least_one_rank():
    model = registry.load_model("qwen3-30b-a3b")
    assert weight_bytes(model, 2, np.full((2, 3), 8.0))["attention"].shape == (2, 3)
    for call in (weight_bytes, kv_bytes):
        with pytest.raises(InputError):
            call(model, 0, 1)
    with pytest.raises(InputError):
        kv_bytes(model, 1, [-1])


def test_schema_refuses_what_cannot_be():
    with pytest.raises(ValueError, match="top_k"):
        Moe(num_layers=1, num_experts=4, top_k=8, intermediate_size=1)
    with pytest.raises(ValueError, match="windowed layers"):
        Attention(kind="gqa", num_heads=1, num_kv_heads=1, head_dim=1, num_windowed_layers=1)
