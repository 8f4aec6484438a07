"""Block sizes of models that mix attention with states."""

import pytest

from kvcache.alignment import align_states
from kvcache.specs import FullAttentionSpec, MambaSpec, MLASpec
from tests.kvcache.pools import full, mamba


def state(*shapes, dtypes=("bfloat16", "bfloat16")):
    return MambaSpec(block_size=16, shapes=shapes, dtypes=dtypes[: len(shapes)])


def attention(heads, head_size, dtype="bfloat16"):
    return FullAttentionSpec(block_size=16, num_kv_heads=heads, head_size=head_size, dtype=dtype)


JAMBA = [attention(8, 128), state((3, 8192), (8192, 16))]
QWEN3_NEXT = [attention(2, 256), state((3, 8192), (32, 128, 128))]
LFM2 = [attention(8, 64), state((2048, 2))]
KIMI_LINEAR = [
    MLASpec(block_size=16, head_size=576),
    state((3, 12_288), (32, 128, 128), dtypes=("bfloat16", "float32")),
]


@pytest.mark.parametrize(
    ("specs", "block", "page_bytes", "padding"),
    [
        pytest.param(JAMBA, 80, 327_680, "5.26%", id="jamba"),
        pytest.param(QWEN3_NEXT, 544, 1_114_112, "1.49%", id="qwen3-next"),
        pytest.param(LFM2, 16, 32_768, "300.00%", id="lfm2"),
        pytest.param(KIMI_LINEAR, 1_920, 2_211_840, "1.89%", id="kimi-linear"),
    ],
)
def test_the_attention_block_is_the_shortest_whose_page_holds_a_state(specs, block, page_bytes, padding):
    """In steps of 16 tokens, of 128 beside latent attention, as vLLM's log says."""
    attention_spec, state_spec = align_states(specs, 16, True, 262_144)
    assert (attention_spec.block_size, attention_spec.page_bytes, state_spec.page_bytes) == (
        block,
        page_bytes,
        page_bytes,
    )
    assert f"{page_bytes / specs[1].state_bytes - 1:.2%}" == padding


def test_eight_bit_keys_and_values_make_longer_blocks():
    """Half the bytes a token: 152 tokens hold the state, in steps of 16 that is 160."""
    attention_spec, _ = align_states([attention(8, 128, "fp8_e4m3"), JAMBA[1]], 16, True, 262_144)
    assert attention_spec.block_size == 160


@pytest.mark.parametrize(("asked", "block"), [(32, 96), (64, 128), (80, 80), (512, 512)])
def test_the_block_is_a_multiple_of_the_one_asked_for_and_never_shorter(asked, block):
    attention_spec, _ = align_states(JAMBA, asked, True, 262_144)
    assert attention_spec.block_size == block


def test_with_prefix_caching_a_state_is_kept_at_every_block_end():
    _, state_spec = align_states(JAMBA, 16, True, 262_144)
    assert (state_spec.cache_mode, state_spec.block_size) == ("align", 80)


def test_without_prefix_caching_there_is_one_state_for_the_whole_request():
    _, state_spec = align_states(JAMBA, 16, False, 262_144)
    assert (state_spec.cache_mode, state_spec.block_size) == ("none", 262_144)


def test_the_largest_state_decides_and_smaller_ones_are_padded_to_the_same_page():
    specs = align_states([full(), mamba(16, page_tokens=40), mamba(16, page_tokens=20)], 16, True, 4_096)
    assert [(spec.block_size, spec.page_bytes) for spec in specs] == [(48, 192)] * 3


def test_layers_without_states_are_left_alone():
    assert align_states([full(), full()], 16, True, 4_096) == [full(), full()]


def test_states_without_attention_are_neither_padded_nor_cached():
    (alone,) = align_states([mamba(16)], 16, True, 4_096)
    assert (alone.cache_mode, alone.block_size, alone.padded_page_bytes) == ("none", 4_096, None)
