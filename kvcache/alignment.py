"""Block sizes for models that mix attention with Mamba: how many tokens a block must have to be as large as a state.

A pool has one page size. A state's page cannot grow with the block, so the attention block grows until
its page holds the state, and the state is padded to it (the design document's case 4, vLLM 0.32's
platform hook).
"""

from collections.abc import Sequence

from kvcache.specs import AttentionSpec, KVCacheSpec, MambaSpec, cdiv

__all__ = ["align_states"]

# Attention kernels read multiples of 16 tokens, those for latent attention of 128.
KERNEL_BLOCK = 16
LATENT_KERNEL_BLOCK = 128


def align_states(
    specs: Sequence[KVCacheSpec], block_size: int, enable_prefix_caching: bool, max_model_len: int
) -> list[KVCacheSpec]:
    """The specs with one page size: attention blocks grown, states padded.

    With prefix caching a state is kept at every block's end (mode "align"), without it there is one
    block for the whole request (mode "none"). Specs without any state come back as they are.
    """
    states = [spec for spec in specs if isinstance(spec, MambaSpec)]
    attention = [spec for spec in specs if isinstance(spec, AttentionSpec)]
    if not states:
        return list(specs)
    if attention:
        state_bytes = max(state.state_bytes for state in states)
        block_size = max(block_size, _block_that_holds(state_bytes, attention[0], block_size))
        page_bytes = block_size * attention[0].token_bytes
    caches_states = enable_prefix_caching and bool(attention)
    mode, state_block = ("align", block_size) if caches_states else ("none", max_model_len)
    aligned: list[KVCacheSpec] = []
    for spec in specs:
        if isinstance(spec, MambaSpec):
            state = spec.in_mode(mode, state_block)
            aligned.append(state.with_page_bytes(page_bytes) if attention else state)
        else:
            aligned.append(spec.with_block_size(block_size))
    return aligned


def _block_that_holds(state_bytes: int, attention: AttentionSpec, block_size: int) -> int:
    kernel_block = LATENT_KERNEL_BLOCK if attention.kind == "mla" else KERNEL_BLOCK
    step = max(kernel_block, block_size)
    return step * cdiv(state_bytes, step * attention.token_bytes)
