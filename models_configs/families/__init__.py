"""Published figures, one file a family, each with the rule that turns them into layers."""

from models_configs.families import gemma3, gpt_oss, jamba, llama, llama4

__all__ = ["FAMILIES"]

FAMILIES = (gemma3.FAMILY, gpt_oss.FAMILY, jamba.FAMILY, llama.FAMILY, llama4.FAMILY)
