"""Mamba-2 mixers as Bamba, Falcon-H1 and Granite write them: fields that begin with `mamba_`."""

from models_configs.hf_config import ConfigFieldError, HFConfig
from models_configs.mamba2 import Mamba2

__all__ = ["MIXER_MODULE", "read_mamba2"]

MIXER_MODULE = "model.layers.1.mamba.in_proj"


def read_mamba2(config: HFConfig, inner_size: int | None = None, *, has_norm: bool = True) -> Mamba2:
    """The mixer; its inner size is `mamba_expand` times the hidden size unless the family knows better."""
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("mamba_n_heads")
    if inner_size is None:
        inner_size = config.integer("mamba_expand", default=2) * hidden_size
    return Mamba2(
        hidden_size=hidden_size,
        num_heads=num_heads,
        head_size=_head_size(config, inner_size, num_heads),
        num_groups=config.integer("mamba_n_groups", default=1),
        d_state=config.integer("mamba_d_state"),
        d_conv=config.integer("mamba_d_conv", default=4),
        has_conv_bias=config.flag("mamba_conv_bias", default=True),
        has_proj_bias=config.flag("mamba_proj_bias", default=False),
        has_norm=has_norm,
        weight_format=config.weight_format(MIXER_MODULE),
    )


def _head_size(config: HFConfig, inner_size: int, num_heads: int) -> int:
    if not config.has("mamba_d_head") or config.fields["mamba_d_head"] == "auto":
        return inner_size // num_heads
    head_size = config.integer("mamba_d_head")
    if head_size * num_heads != inner_size:
        raise ConfigFieldError(
            f"{config.origin} has {num_heads} Mamba heads of {head_size}, which do not make its inner size {inner_size}"
        )
    return head_size
