"""What most families write alike in their configuration."""

from models_configs.attention import Heads
from models_configs.published import HFConfig

__all__ = ["read_heads"]


def read_heads(config: HFConfig, *, has_qk_norm: bool = False, has_sinks: bool = False) -> Heads:
    """The attention heads; norms and sinks are a property of the family, not of its configuration."""
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    return Heads(
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=config.integer("num_key_value_heads", default=num_heads),
        # where it is given it need not be the quotient
        head_size=config.integer("head_dim", default=hidden_size // num_heads),
        has_bias=config.flag("attention_bias", default=False),
        has_qk_norm=has_qk_norm,
        has_sinks=has_sinks,
    )
