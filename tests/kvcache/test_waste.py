"""What one request holds, what of it is needed, and why the rest is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcache.errors import InvariantError, UnsupportedLayersError
from kvcache.policies import POLICIES, SearchPolicy, policy_named
from kvcache.specs import FullAttentionSpec, MambaSpec
from kvcache.waste import WASTE_CAUSES, GroupedLayers, Waste, needed_bytes
from tests.kvcache.pools import TOKEN_BYTES, chunked, full, sliding
from tests.kvcache.test_policies import GEMMA_3_27B, JAMBA, kept, state

PAGE = 16 * TOKEN_BYTES


def waste(name, layers, num_tokens):
    return GroupedLayers.of(policy_named(name), kept(*layers)).waste(num_tokens)


def wasted(name, layers, num_tokens):
    """The causes that waste anything, in bytes."""
    return {cause: num_bytes for cause, num_bytes in waste(name, layers, num_tokens).causes.items() if num_bytes}


# ------------------------------------------------------------------------------------------- what is needed


@pytest.mark.parametrize(
    ("spec", "num_bytes"),
    [
        pytest.param(full(), 1000 * TOKEN_BYTES, id="every token"),
        pytest.param(sliding(64), 64 * TOKEN_BYTES, id="the window, the token itself included"),
        pytest.param(sliding(2000), 1000 * TOKEN_BYTES, id="a window that is not full"),
        pytest.param(chunked(300), 300 * TOKEN_BYTES, id="a chunk at its end"),
        pytest.param(state(100), 200, id="one state"),
    ],
)
def test_what_a_layer_needs(spec, num_bytes):
    assert needed_bytes([spec], 1000) == num_bytes


# ---------------------------------------------------------------------------------------------- each cause


def test_padding_layers_are_wasted_in_every_block():
    """20 full and 14 sliding layers: six places of 20, in the window's 3 blocks."""
    layers = [full()] * 20 + [sliding(32)] * 14
    assert wasted("vllm", layers, 1600)["padding_layers"] == 6 * 3 * PAGE


def test_a_page_that_does_not_divide_is_padded():
    """The full layer's page of two heads has the size of one of three."""
    assert wasted("vllm", [sliding(64, num_kv_heads=3), full(num_kv_heads=2)], 32) == {"page_padding": 2 * PAGE}


def test_lfm2s_states_are_padded_by_300_percent():
    """A state of 8,192 bytes in a page of 32,768: four times its size."""
    attention = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=64)
    layers = [attention] * 6 + [state(4096)] * 10
    assert waste("vllm", layers, 1600).causes["state_padding"] == 3 * 10 * 8192
    assert "state_padding" not in wasted("search", layers, 1600)


def test_jambas_states_are_padded_by_5_26_percent():
    assert waste("vllm", JAMBA, 800).causes["state_padding"] / (28 * 311_296) == pytest.approx(0.0526, abs=1e-4)


def test_slots_of_the_last_block_are_empty_until_tokens_come():
    assert wasted("vllm", [full()] * 3, 17) == {"empty_slots": 3 * 15 * TOKEN_BYTES}


def test_a_window_that_starts_within_a_block_keeps_one_more():
    assert wasted("vllm", [sliding(64)], 1600) == {"out_of_window": 16 * TOKEN_BYTES}


def test_states_for_drafted_tokens_are_copies():
    """Two more states of 200 bytes, each in a page of its own."""
    layers = [MambaSpec(block_size=16, shapes=((100,),), dtypes=("bfloat16",), num_speculative_blocks=2)]
    assert wasted("vllm", layers, 50) == {"state_copies": 2 * 200}


def test_a_large_page_is_not_shared_by_types():
    """Two full and three sliding layers: large pages of six layers' blocks, one for each type."""
    layers = [full(), full(), sliding(64), sliding(64), sliding(64)]
    assert wasted("two-level", layers, 16) == {"unused_small_pages": (4 + 3) * PAGE}
    assert wasted("two-level", layers, 48) == {"unused_small_pages": 3 * PAGE}


# ------------------------------------------------------------------------------------------- known figures


def test_gemma_2_without_the_hybrid_manager_wastes_25_percent_at_8192_tokens():
    """Half the layers have a window of 4,096: 1 - (1/2 + 1/2 x 1/2), exact where the length fills its blocks."""
    layers = [sliding(4096), full()] * 13
    assert waste("unified", layers, 8192).wasted_pct == pytest.approx(25)
    # Elsewhere less than a block more is held in each layer: 15 slots of 8,208.
    assert waste("unified", layers, 8193).wasted_pct == pytest.approx(25, abs=100 * 15 / 8208)


def test_ministral_as_published_without_the_hybrid_manager_wastes_56_percent_at_131072_tokens():
    """27 of 36 layers have a window of 32,768: 1 - (9 + 27/4) / 36 = 0.5625."""
    layers = [sliding(32_768)] * 27 + [full()] * 9
    assert waste("unified", layers, 131_072).wasted_pct == pytest.approx(56.25)
    assert set(wasted("unified", layers, 131_072)) == {"out_of_window"}


def test_gemma_3_27b_holds_8582_blocks_at_131072_tokens():
    """8,192 of full attention and 65 in each of six groups of windows, of ten layers' pages."""
    assert waste("vllm", GEMMA_3_27B, 131_072).held_bytes == (8192 + 6 * 65) * 10 * PAGE


# --------------------------------------------------------------------------------------------- parts add up


def test_parts_that_do_not_add_up_are_a_bug():
    with pytest.raises(InvariantError, match="parts-add-up"):
        Waste(1, held_bytes=10, needed_bytes=5, causes=dict.fromkeys(WASTE_CAUSES, 0))


def test_nothing_kept_is_nothing_wasted():
    nothing = waste("vllm", [], 100)
    assert (nothing.held_bytes, nothing.wasted_pct, nothing.padding_pct) == (0, 0, 0)


heads = st.sampled_from([1, 2, 3, 4])
attention_layers = st.one_of(
    st.builds(full, num_kv_heads=heads),
    st.builds(sliding, st.sampled_from([1, 5, 64, 1000]), num_kv_heads=heads),
    st.builds(chunked, st.sampled_from([7, 64]), num_kv_heads=heads),
)
state_layers = st.builds(state, st.integers(1, 300), num_speculative_blocks=st.integers(0, 1))
layer_lists = st.lists(st.one_of(attention_layers, attention_layers, state_layers), min_size=1, max_size=12)


@given(layers=layer_lists, name=st.sampled_from(list(POLICIES)), num_tokens=st.integers(1, 3000), caching=st.booleans())
def test_the_parts_of_any_request_add_up_to_what_it_holds(layers, name, num_tokens, caching):
    """And every layer is in one group, once."""
    try:
        grouped = GroupedLayers.of(policy_named(name), kept(*layers, caching=caching))
    except UnsupportedLayersError:
        return
    request = grouped.waste(num_tokens)
    assert sorted(layer for group in grouped.groups for layer in group.layers) == list(range(len(layers)))
    assert sum(request.ledger.values()) == request.held_bytes >= request.needed_bytes
    assert name != "ideal" or request.held_bytes == request.needed_bytes


@given(layers=layer_lists, lengths=st.lists(st.integers(1, 3000), min_size=1, max_size=3))
def test_search_never_wastes_more_than_vllm(layers, lengths):
    """At any length of its mix."""
    searched = GroupedLayers.of(SearchPolicy(tuple(lengths)), kept(*layers))
    published = GroupedLayers.of(policy_named("vllm"), kept(*layers))
    assert all(searched.waste(length).held_bytes <= published.waste(length).held_bytes for length in lengths)
