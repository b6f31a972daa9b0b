"""A ``models/`` file: one model architecture, as published, with the source of every figure."""

from typing import Literal, Self

from pydantic import Field, model_validator

from nccltune.schemas.common import Strict

# Far above any published model; beyond them a file is broken, and tables of one entry each would fill the memory.
MAX_LAYERS, MAX_EXPERTS = 10_000, 65_536
# Bytes per stored weight, block scales included (fp8 with one fp32 scale per 128x128 block,
# int4 with a bf16 scale per 32, nvfp4 with an fp8 scale per 16, mxfp4 with a one-byte scale per 32).
BYTES_PER_WEIGHT: dict[str, float] = {
    "bf16": 2.0,
    "fp8": 1.0,
    "fp8-block128": 1.0 + 4 / (128 * 128),
    "int8": 1.0,
    "int4-g32": 0.5 + 2 / 32,
    "int4-g128": 0.5 + 2 / 128,
    "nvfp4-g16": 0.5 + 1 / 16,
    "mxfp4-g32": 0.5 + 1 / 32,
}
WeightFormat = Literal["bf16", "fp8", "fp8-block128", "int8", "int4-g32", "int4-g128", "nvfp4-g16", "mxfp4-g32"]


class Attention(Strict):
    """Attention of one layer. ``mla`` uses the rank fields, ``gqa`` the head fields."""

    kind: Literal["gqa", "mla"]
    num_heads: int = Field(gt=0)
    num_kv_heads: int = Field(default=0, ge=0)
    head_dim: int = Field(default=0, ge=0)
    q_lora_rank: int = Field(default=0, ge=0)
    kv_lora_rank: int = Field(default=0, ge=0)
    qk_nope_head_dim: int = Field(default=0, ge=0)
    qk_rope_head_dim: int = Field(default=0, ge=0)
    v_head_dim: int = Field(default=0, ge=0)
    qkv_bias: bool = False
    o_bias: bool = False
    gated_output: bool = False
    """The query projection is twice as wide and half of it gates the output (Qwen3-Next, Qwen3.5)."""
    indexer_num_heads: int = Field(default=0, ge=0)
    """Sparse attention indexer (DeepSeek-V3.2): heads, their width and how many tokens it keeps."""
    indexer_head_dim: int = Field(default=0, ge=0)
    indexer_topk: int = Field(default=0, ge=0)
    sliding_window: int = Field(default=0, ge=0)
    """Tokens a windowed layer attends to; 0: every layer attends to the whole context."""
    num_windowed_layers: int = Field(default=0, ge=0)
    num_linear_layers: int = Field(default=0, ge=0)
    """Layers whose attention state does not grow with the context (hybrid models)."""
    linear_num_key_heads: int = Field(default=0, ge=0)
    """Gated linear attention of those layers: heads and widths of keys and values."""
    linear_key_head_dim: int = Field(default=0, ge=0)
    linear_num_value_heads: int = Field(default=0, ge=0)
    linear_value_head_dim: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.kind == "gqa" and not (self.num_kv_heads and self.head_dim):
            raise ValueError("gqa attention needs num_kv_heads and head_dim")
        if self.kind == "gqa" and self.num_kv_heads > self.num_heads:
            raise ValueError(f"num_kv_heads = {self.num_kv_heads} is more than num_heads = {self.num_heads}")
        if self.kind == "mla" and not (self.kv_lora_rank and self.qk_nope_head_dim and self.v_head_dim):
            raise ValueError("mla attention needs kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim and v_head_dim")
        if self.num_windowed_layers and not self.sliding_window:
            raise ValueError("windowed layers need sliding_window")
        if self.num_linear_layers and not (
            self.linear_num_key_heads
            and self.linear_key_head_dim
            and self.linear_num_value_heads
            and self.linear_value_head_dim
        ):
            raise ValueError("linear layers need the linear_ heads and widths")
        return self


class Moe(Strict):
    """Mixture-of-experts layers."""

    num_layers: int = Field(gt=0, le=MAX_LAYERS)
    num_experts: int = Field(gt=0, le=MAX_EXPERTS)
    top_k: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    num_shared_experts: int = Field(default=0, ge=0)
    shared_intermediate_size: int = Field(default=0, ge=0)
    """Width of all shared experts together."""
    expert_bias: bool = False
    """Expert projections and router have biases (gpt-oss)."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.top_k > self.num_experts:
            raise ValueError(f"top_k = {self.top_k} is more than num_experts = {self.num_experts}")
        if bool(self.num_shared_experts) != bool(self.shared_intermediate_size):
            raise ValueError("num_shared_experts and shared_intermediate_size go together")
        return self


class Quantization(Strict):
    """Weight format by part of the model; checkpoints leave some parts in bf16."""

    attention: WeightFormat = "bf16"
    dense: WeightFormat = "bf16"
    shared_experts: WeightFormat = "bf16"
    routed_experts: WeightFormat = "bf16"
    lm_head: WeightFormat = "bf16"
    kv_bytes_per_element: float = 2.0


class Published(Strict):
    """Published totals that the computed ones are tested against (counts of parameters)."""

    total_params: float | None = None
    active_params: float | None = None
    tolerance: float = 0.02
    """Relative difference allowed: published totals are rounded, and some count parts that a file leaves out."""
    active_tolerance: float | None = None
    """The same for active_params; None: as ``tolerance``."""
    active_counts_embedding: bool = False
    """The published active count includes the input embedding (a gather of one row, which ours leaves out)."""
    note: str = ""
    """Why the tolerance is what it is."""
    source: str


class Model(Strict):
    """One model architecture. Layers: ``num_layers = moe.num_layers + num_dense_layers``."""

    name: str
    title: str
    aliases: list[str] = Field(default_factory=list)
    """Hugging Face names and other spellings that find this file."""
    hf_architecture: str = ""
    num_layers: int = Field(gt=0, le=MAX_LAYERS)
    hidden_size: int = Field(gt=0)
    vocab_size: int = Field(gt=0)
    num_dense_layers: int = Field(default=0, ge=0)
    dense_intermediate_size: int = Field(default=0, ge=0)
    tie_word_embeddings: bool = False
    activation_bytes: int = 2
    attention: Attention
    moe: Moe | None = None
    quantization: Quantization = Quantization()
    allreduces_per_forward: int | None = None
    """Only where the plain rule (2 x layers + 1) does not hold."""
    published: Published | None = None
    default_drafter: str = ""
    source: list[str] = Field(min_length=1)
    """Where the figures were read, one entry each."""
    notes: list[str] = Field(default_factory=list)
    """Assumptions and warnings that a reader of the figures should know."""

    @model_validator(mode="after")
    def _layers(self) -> Self:
        moe_layers = self.moe.num_layers if self.moe else 0
        if moe_layers + self.num_dense_layers != self.num_layers:
            raise ValueError(
                f"{moe_layers} MoE + {self.num_dense_layers} dense layers are not num_layers = {self.num_layers}"
            )
        if self.num_dense_layers and not self.dense_intermediate_size:
            raise ValueError("dense layers need dense_intermediate_size")
        if self.attention.num_windowed_layers + self.attention.num_linear_layers > self.num_layers:
            raise ValueError(f"more windowed and linear layers than num_layers = {self.num_layers}")
        return self

    @property
    def num_allreduces(self) -> int:
        """All-reduces of one forward under plain tensor parallelism: 2 x layers + 1 (embedding)."""
        return self.allreduces_per_forward if self.allreduces_per_forward is not None else 2 * self.num_layers + 1

    def allreduce_bytes(self, num_tokens: int) -> int:
        """Message of one all-reduce for a forward over ``num_tokens``: Kimi-K2.5, 3 tokens -> 43,008 B."""
        return num_tokens * self.hidden_size * self.activation_bytes


class Drafter(Strict):
    """A ``models/drafters/`` file: one EAGLE-3 draft head (a dense layer with its own head)."""

    name: str
    title: str
    aliases: list[str] = Field(default_factory=list)
    target: str
    """Name of the target model's file."""
    num_layers: int = Field(default=1, gt=0, le=MAX_LAYERS)
    hidden_size: int = Field(gt=0)
    target_hidden_size: int = Field(gt=0)
    num_fused_layers: int = 3
    """Hidden states of this many target layers enter the fusion projection ``fc``."""
    intermediate_size: int = Field(gt=0)
    vocab_size: int = Field(gt=0)
    draft_vocab_size: int = Field(gt=0)
    attention: Attention
    weight_format: WeightFormat = "bf16"
    activation_bytes: int = 2
    source: list[str] = Field(min_length=1)
    notes: list[str] = Field(default_factory=list)
