"""What one layer keeps, in bytes and in blocks."""

import pytest

from kvcache.specs import FullAttentionSpec, MambaSpec, MLASpec, SlidingWindowSpec
from tests.kvcache.pools import chunked, full, mamba, sliding

# ---------------------------------------------------------------------------------------------- bytes


def test_a_page_holds_keys_and_values_of_all_heads_for_every_token_of_a_block():
    """gpt-oss: 8 heads of 64 in two bytes are 2,048 bytes a token."""
    spec = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=64)
    assert (spec.token_bytes, spec.page_bytes) == (2_048, 16 * 2_048)


def test_values_may_be_shorter_than_keys():
    assert FullAttentionSpec(block_size=1, num_kv_heads=2, head_size=192, head_size_v=128).token_bytes == 2 * 320 * 2


def test_eight_bit_keys_and_values_halve_the_page():
    sixteen, eight = full(head_size=128), full(head_size=128, dtype="fp8_e4m3")
    assert eight.page_bytes * 2 == sixteen.page_bytes


@pytest.mark.parametrize(
    ("element_bytes", "dtypes"),
    [(1, ["fp8_e4m3", "fp8_e5m2", "int8", "uint8"]), (2, ["bfloat16", "float16"]), (4, ["float32"])],
)
def test_bytes_of_an_element(element_bytes, dtypes):
    assert {full(1, dtype=dtype).page_bytes for dtype in dtypes} == {2 * element_bytes}


def test_latent_attention_keeps_one_vector_for_all_heads():
    """512 latent elements and 64 rotary ones."""
    assert MLASpec(block_size=64, head_size=512 + 64).token_bytes == 1_152


def test_a_state_takes_the_bytes_of_its_parts_whatever_the_block():
    """Qwen3-Next on one rank: a convolution of 24,576 elements, 32 recurrent matrices of 128 x 128."""
    spec = MambaSpec(block_size=544, shapes=((3, 8192), (32, 128, 128)), dtypes=("bfloat16", "bfloat16"))
    assert (spec.page_bytes, spec.with_block_size(1).page_bytes) == (1_097_728, 1_097_728)


def test_the_parts_of_a_state_may_differ_in_dtype():
    assert MambaSpec(block_size=1, shapes=((3, 10), (10, 16)), dtypes=("bfloat16", "float32")).page_bytes == 60 + 640


# ------------------------------------------------------------------------------------- larger pages


def test_a_page_twice_as_large_holds_twice_the_tokens():
    larger = full(16).with_page_bytes(2 * full(16).page_bytes)
    assert (larger.block_size, larger.padded_page_bytes) == (32, None)


def test_a_page_that_no_block_fills_is_padded():
    larger = full(16).with_page_bytes(100)
    assert (larger.block_size, larger.content_bytes, larger.page_bytes) == (16, 64, 100)


def test_a_latent_page_is_never_padded():
    with pytest.raises(ValueError, match="not a whole multiple"):
        MLASpec(block_size=16, head_size=2).with_page_bytes(100)


def test_a_latent_page_grows_by_whole_blocks():
    assert MLASpec(block_size=16, head_size=2).with_page_bytes(3 * 64).block_size == 48


def test_a_state_is_padded_and_keeps_its_block():
    larger = [mamba(16).with_page_bytes(page_bytes) for page_bytes in (64, 128)]
    assert [(spec.block_size, spec.state_bytes, spec.page_bytes) for spec in larger] == [(16, 64, 64), (16, 64, 128)]


# ----------------------------------------------------------------- what a request can ever hold, in blocks


@pytest.mark.parametrize(
    ("spec", "num_tokens", "in_flight", "blocks"),
    [
        (full(), 131_072, 8_192, 8_192),
        (full(), 17, 8_192, 2),
        (MLASpec(block_size=64, head_size=576), 1_000, 8_192, 16),
        (sliding(128), 131_072, 8_192, 521),
        (sliding(128), 131_072, 1_024, 73),
        (sliding(128), 100, 8_192, 8),
        (sliding(17), 131_072, 16, 3),
        (sliding(18), 131_072, 16, 4),
        (chunked(8_192), 131_072, 8_192, 1_024),
        (chunked(8_192), 100, 8_192, 7),
        (mamba(528), 131_072, 8_192, 2),
        (mamba(131_072, "none"), 131_072, 8_192, 1),
    ],
)
def test_most_blocks_of_a_request(spec, num_tokens, in_flight, blocks):
    """A window and what is in flight, one block more as it may begin inside one; a chunk never does."""
    assert spec.max_blocks_per_request(num_tokens, in_flight) == blocks


@pytest.mark.parametrize(("cache_mode", "blocks"), [("align", 4), ("none", 3)])
def test_each_speculative_token_needs_a_state_of_its_own(cache_mode, blocks):
    spec = MambaSpec(
        block_size=16, shapes=((8,),), dtypes=("bfloat16",), cache_mode=cache_mode, num_speculative_blocks=2
    )
    assert spec.max_blocks_per_request(1_000, 100) == blocks


# ------------------------------------------------------------------------------- hybrid manager off, types


def test_without_the_hybrid_manager_a_window_keeps_everything_and_is_marked():
    spec = sliding(1024).keeping_everything(16)
    assert (spec, spec.unmarked) == (full(window=1024), full())


def test_without_the_hybrid_manager_a_padded_page_still_holds_a_grown_block():
    spec = SlidingWindowSpec(block_size=16, num_kv_heads=1, head_size=1, window=8, padded_page_bytes=100)
    assert [spec.keeping_everything(size).page_bytes for size in (16, 32)] == [100, 128]


def test_layers_of_one_type_need_the_same_blocks_whatever_their_heads():
    """Full and latent attention are one type, two windows are not."""
    specs = [full(), full(head_size=256), MLASpec(block_size=16, head_size=576), sliding(8), sliding(9), sliding(8, 32)]
    assert [len({spec.type_key for spec in specs[:n]}) for n in range(1, 7)] == [1, 1, 1, 2, 3, 4]


# --------------------------------------------------------------------------------------------- nonsense


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: full(0), "block_size must be at least 1, got 0"),
        (lambda: full(dtype="bf16"), "unknown dtype 'bf16'; known: bfloat16"),
        (lambda: sliding(0), "window must be at least 1, got 0"),
        (lambda: chunked(0), "chunk must be at least 1, got 0"),
        (lambda: full(padded_page_bytes=63), "a page of 63 bytes cannot hold the 64 bytes of a block"),
        (lambda: mamba(16, "all"), 'cache_mode must be "none" or "align", got \'all\''),
        (lambda: mamba(16).with_page_bytes(63), "a page of 63 bytes cannot hold a state of 64 bytes"),
        (lambda: MambaSpec(block_size=1, shapes=((1,),), dtypes=()), "1 state shapes but 0 dtypes"),
    ],
)
def test_nonsense_is_refused_at_birth(make, message):
    with pytest.raises(ValueError, match=message):
        make()
