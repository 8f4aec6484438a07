"""Zamba2: Mamba-2 in every layer, and before some of them a transformer block whose weights several layers share.

A shared block is counted where it first stands; layers that use it again add their own adapters, and have
keys and values of their own. What a token computes there, and the reading of those weights, counts once too.
"""

from dataclasses import dataclass
from itertools import chain, repeat

from kvcache.specs import cdiv
from models_configs.attention import FullAttention, Heads
from models_configs.hf_config import ConfigFieldError, HFConfig
from models_configs.mamba2 import Mamba2
from models_configs.mlp import DenseMLP
from models_configs.model import Layer
from models_configs.published import Confidence, Family, Published, Stack
from models_configs.quantization import Weights

__all__ = ["FAMILY"]


@dataclass(frozen=True, kw_only=True)
class _SharedHeads(Heads):
    """Heads whose weights may be those of an earlier layer, beside adapters (low-rank additions to q, k and v)."""

    owns_weights: bool
    adapter_rank: int
    """0 for none."""

    def weights(self, tensor_parallel: int) -> Weights:
        """Its own ones."""
        num_heads, num_kv_heads = self.on_rank(tensor_parallel)
        read_size = self.hidden_size if self.query_size is None else self.query_size
        down = 3 * cdiv(self.adapter_rank, tensor_parallel) * read_size
        up = self.adapter_rank * (num_heads + 2 * num_kv_heads) * self.head_size
        block = super().weights(tensor_parallel) if self.owns_weights else Weights(0)
        return Weights(block.matrices + down + up, block.others)


@dataclass(frozen=True, kw_only=True)
class _SharedMLP(DenseMLP):
    """An MLP whose weights may be those of an earlier layer, beside an adapter of its gate and up projections."""

    owns_weights: bool
    adapter_rank: int

    def _weights(self, tensor_parallel: int) -> Weights:
        down = cdiv(self.adapter_rank, tensor_parallel) * self.hidden_size
        up = self.adapter_rank * 2 * self._width(tensor_parallel)
        block = super()._weights(tensor_parallel) if self.owns_weights else Weights(0)
        return Weights(block.matrices + down + up, block.others)


def _mamba(config: HFConfig) -> Mamba2:
    return Mamba2(
        hidden_size=config.integer("hidden_size"),
        num_heads=config.integer("n_mamba_heads"),
        head_size=config.integer("mamba_headdim"),
        num_groups=config.integer("mamba_ngroups"),
        d_state=config.integer("mamba_d_state"),
        d_conv=config.integer("mamba_d_conv"),
        has_conv_bias=config.flag("use_conv_bias", default=True),
        has_proj_bias=config.flag("add_bias_linear", default=False),
        weight_format=config.weight_format("model.layers.1.mamba.in_proj"),
    )


def _heads(config: HFConfig, *, owns_weights: bool) -> _SharedHeads:
    """Heads that read the token's embedding beside the hidden state."""
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    query_size = config.integer("attention_hidden_size", default=2 * hidden_size)
    has_adapters = config.flag("use_shared_attention_adapter", default=False)
    return _SharedHeads(
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=config.integer("num_key_value_heads", default=num_heads),
        head_size=config.integer("attention_head_dim", default=query_size // num_heads),
        query_size=query_size,
        weight_format=config.weight_format("model.layers.1.shared_transformer.self_attn.q_proj"),
        owns_weights=owns_weights,
        adapter_rank=config.integer("adapter_rank") if has_adapters else 0,
    )


def _mlp(config: HFConfig, *, owns_weights: bool) -> _SharedMLP:
    hidden_size = config.integer("hidden_size")
    width = config.integer("intermediate_size", default=4 * hidden_size)
    return _SharedMLP(
        hidden_size=hidden_size,
        intermediate_size=width,
        num_bias_parameters=(2 * width + hidden_size) * config.flag("add_bias_linear", default=False),
        weight_format=config.weight_format("model.layers.1.shared_transformer.feed_forward.down_proj"),
        owns_weights=owns_weights,
        adapter_rank=config.integer("adapter_rank"),
    )


def _hybrid(config: HFConfig, mamba: Mamba2, *, owns_weights: bool) -> Layer:
    """A transformer block, a matrix that every rank holds, and a mixer to which both give their sum."""
    heads, hidden_size = _heads(config, owns_weights=owns_weights), mamba.hidden_size
    # one norm of the block is over all that its attention reads
    block_norms = (heads.query_size or 0) + hidden_size if owns_weights else 0
    return Layer(
        mixers=(FullAttention(heads), mamba),
        mlps=(_mlp(config, owns_weights=owns_weights),),
        norm_parameters=hidden_size + hidden_size**2 + block_norms,
    )


def _stack(config: HFConfig) -> Stack:
    mamba = _mamba(config)
    plain = Layer(mixers=(mamba,), mlps=(), norm_parameters=mamba.hidden_size)
    first, again = (_hybrid(config, mamba, owns_weights=owns) for owns in (True, False))
    # the blocks take turns, so each stands for the first time among as many hybrid layers
    hybrids = chain([first] * config.integer("num_mem_blocks"), repeat(again))
    return Stack(tuple(next(hybrids) if is_hybrid else plain for is_hybrid in _are_hybrid(config)))


def _are_hybrid(config: HFConfig) -> list[bool]:
    types, num_layers = config.texts("layers_block_type"), config.integer("num_hidden_layers")
    if len(types) != num_layers:
        raise ConfigFieldError(f"{config.origin} has {num_layers} layers but {len(types)} layers_block_type")
    # transformers 5 writes the first as the second
    if unknown := set(types) - {"mamba", "linear_attention", "hybrid"}:
        raise ConfigFieldError(f"unknown layers_block_type of {config.origin}: {', '.join(sorted(unknown))}")
    return [kind == "hybrid" for kind in types]


FAMILY = Family(
    model_types=("zamba2",),
    stack=_stack,
    published=(
        Published(
            name="zamba2-7b",
            hf_id="Zyphra/Zamba2-7B",
            same_shape=("Zyphra/Zamba2-7B-Instruct",),
            config={
                "model_type": "zamba2",
                "num_hidden_layers": 81,
                "layers_block_type": [
                    *["mamba"] * 6,
                    *["hybrid", *["mamba"] * 4],
                    *["hybrid", *["mamba"] * 5] * 11,
                    *["hybrid", *["mamba"] * 3],
                ],
                "num_mem_blocks": 2,
                "hidden_size": 3584,
                "num_attention_heads": 32,
                "num_key_value_heads": 32,
                "attention_hidden_size": 7168,
                "attention_head_dim": 224,
                "use_shared_attention_adapter": False,
                "intermediate_size": 14336,
                "adapter_rank": 128,
                "n_mamba_heads": 112,
                "mamba_headdim": 64,
                "mamba_ngroups": 2,
                "mamba_d_state": 64,
                "mamba_d_conv": 4,
                "vocab_size": 32000,
                "max_position_embeddings": 4096,
                "tie_word_embeddings": True,
                "torch_dtype": "bfloat16",
            },
            source=(
                "a copy on GitHub of NX-AI's benchmark of mLSTM inference (`hf_model_benchmark`), whose dictionary is"
                " that of the config.json under older names (ffn_hidden_size, state_size, lora_rank, kv_channels)"
            ),
            confidence=Confidence.TRANSCRIBED,
            exceptions={
                "attention_head_dim": f"transformers Zamba2Config (2 * hidden / heads): {Confidence.CLASS_DEFAULT}"
            },
        ),
    ),
)
