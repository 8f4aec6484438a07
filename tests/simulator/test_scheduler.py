"""Continuous batching, told as stories: steps take one second, blocks hold four tokens unless a story needs others."""

import random

import pytest

from tests.kvcache.pools import full, mamba, sliding
from tests.simulator.conftest import CHUNKS_LEAVE_NO_BUDGET, Arrival

# Waiting


def test_second_request_waits_for_blocks(serve):
    """With room for one, the second starts when the first has freed its blocks."""
    log = serve(
        num_blocks=5,
        block_size=4,
        step_s=1.0,
        requests=[Arrival(0.0, prompt=12, output=3), Arrival(0.5, prompt=12, output=1)],
    )
    assert log.first_token_s == {"a": 1.0, "b": 4.0}


def test_first_come_first_served(serve):
    log = serve(max_num_seqs=1, requests=[Arrival(at_s, prompt=4, output=2) for at_s in (0.2, 0.0, 0.1)])
    assert log.finish_s == {"b": 2.0, "c": 4.0, "a": 6.0}


def test_the_head_of_the_line_blocks_those_behind_it(serve):
    """Of 40 blocks the first takes 26; the second needs 19, and the third, for which 2 would do, waits with it."""
    log = serve(
        num_blocks=41,
        block_size=16,
        requests=[Arrival(0.0, prompt=400, output=10), Arrival(0.5, prompt=300, output=1), Arrival(0.5, 20, 1)],
    )
    assert log.first_token_s == {"a": 1.0, "b": 11.0, "c": 11.0}


def test_no_more_than_max_num_seqs_run_at_once(serve):
    log = serve(max_num_seqs=2, requests=[Arrival(0.0, prompt=4, output=3)] * 5)
    assert [len(step) for step in log.steps] == [2, 2, 2, 2, 2, 2, 1, 1, 1]


# The token budget


def test_a_long_prompt_is_cut_to_the_budget(serve):
    log = serve(max_num_batched_tokens=32, requests=[Arrival(0.0, prompt=100, output=2)])
    assert log.tokens("a") == [32, 32, 32, 4, 1]


def test_running_requests_are_served_before_a_new_prompt(serve):
    """Two decodes take two of the eight tokens; what is left of the last step's budget goes to the next prompt."""
    log = serve(
        max_num_batched_tokens=8,
        requests=[Arrival(0.0, 4, 9), Arrival(0.0, 4, 9), Arrival(0.5, prompt=15, output=1), Arrival(0.5, 10, 1)],
    )
    assert log.steps[1:5] == [
        {"a": 1, "b": 1, "c": 6},
        {"a": 1, "b": 1, "c": 6},
        {"a": 1, "b": 1, "c": 3, "d": 3},
        {"a": 1, "b": 1, "d": 6},
    ]


def test_decodes_that_the_budget_does_not_reach_miss_a_step(serve):
    """Chunks end at blocks of eight: while the first decodes, 15 tokens are good for 8, and then 16 for 16."""
    log = serve(**CHUNKS_LEAVE_NO_BUDGET)
    assert log.steps[3:7] == [{"a": 1, "b": 8, "c": 1}, {"b": 16}, {"b": 16}, {"b": 4, "c": 1}]


def test_a_long_prompt_leaves_room_for_others(serve):
    """With a threshold of 16 tokens, two prompts share each step."""
    requests = [Arrival(0.0, prompt=40, output=1), Arrival(0.0, prompt=40, output=1)]
    log = serve(requests, max_num_batched_tokens=64, long_prefill_token_threshold=16)
    assert log.steps == [{"a": 16, "b": 16}, {"a": 16, "b": 16}, {"a": 8, "b": 8}]


def test_a_long_prompt_alone_need_not_leave_room(serve):
    """The threshold counts from the step that sees the second request."""
    requests = [Arrival(0.0, prompt=100, output=1), Arrival(0.5, prompt=4, output=1)]
    log = serve(requests, max_num_batched_tokens=64, long_prefill_token_threshold=16)
    assert log.tokens("a") == [64, 16, 20]


# Preemption


def test_the_most_recent_request_yields_and_its_retry_hits_its_own_blocks(serve):
    """Both need a third block, there is one. The second computes only its ninth token again."""
    log = serve(num_blocks=6, requests=[Arrival(0.0, prompt=8, output=5), Arrival(0.5, prompt=8, output=5)])
    assert log.preemptions == {"a": 0, "b": 1}
    assert log.tokens("b") == [8, 1, 1, 1, 1]


def test_a_victim_whose_blocks_were_taken_computes_them_again(serve):
    """The first grows into one of the second's two blocks: the last one goes first."""
    log = serve(num_blocks=6, requests=[Arrival(0.0, prompt=8, output=9), Arrival(0.5, prompt=8, output=5)])
    assert log.tokens("b") == [8, 5, 1, 1, 1]


def test_a_preempted_request_goes_before_those_that_wait(serve):
    log = serve(
        num_blocks=6,
        max_num_seqs=2,
        requests=[Arrival(0.0, 8, 5), Arrival(0.0, 8, 5), Arrival(0.0, prompt=4, output=1)],
    )
    assert log.preemptions == {"a": 0, "b": 1, "c": 0}
    assert log.first_token_s["c"] > log.finish_s["a"]
    assert list(log.steps[5]) == ["b", "c"]


def test_nobody_is_admitted_in_a_step_that_preempts(serve):
    """The third would fit into what the first leaves to the second in step 3, and comes in step 4."""
    requests = [Arrival(0.0, prompt=8, output=9, priority=9), Arrival(0.5, 8, 5), Arrival(0.5, 8, 1, priority=1)]
    log = serve(requests, scheduling_policy="priority", num_blocks=6)
    assert log.steps[:4] == [{"a": 8}, {"a": 1, "b": 8}, {"b": 1}, {"b": 1, "c": 8}]


# Priorities


def test_the_smaller_priority_is_admitted_first(serve):
    """Equal ones in order of arrival."""
    requests = [Arrival(0.0, 4, 1, priority=priority) for priority in (5, 1, 3)] + [Arrival(0.5, 4, 1, priority=3)]
    log = serve(requests, scheduling_policy="priority", max_num_seqs=1)
    assert log.finish_s == {"b": 1.0, "c": 2.0, "d": 3.0, "a": 4.0}


def test_the_largest_priority_yields_though_it_came_first(serve):
    requests = [Arrival(0.0, prompt=8, output=9, priority=9), Arrival(0.5, prompt=8, output=5, priority=0)]
    log = serve(requests, scheduling_policy="priority", num_blocks=6)
    assert log.preemptions == {"a": 1, "b": 0}


def test_priorities_mean_nothing_to_first_come_first_served(serve):
    log = serve(max_num_seqs=1, requests=[Arrival(0.0, 4, 1, priority=5), Arrival(0.0, 4, 1, priority=1)])
    assert log.finish_s == {"a": 1.0, "b": 2.0}


# Admission


def test_a_watermark_is_left_free_by_admissions(serve):
    """Three of seven blocks are free; the second needs two, but a third of the pool is to stay free."""
    requests = [Arrival(0.0, prompt=16, output=4), Arrival(0.5, prompt=8, output=1)]
    without, with_watermark = (serve(requests, num_blocks=8, watermark=watermark) for watermark in (0.0, 0.3))
    assert (without.first_token_s["b"], with_watermark.first_token_s["b"]) == (2.0, 5.0)


def test_a_watermark_does_not_keep_out_who_runs_alone(serve):
    log = serve(num_blocks=8, watermark=0.9, requests=[Arrival(0.0, prompt=24, output=1)])
    assert log.first_token_s == {"a": 1.0}


@pytest.mark.parametrize(("reserve_full_isl", "preemptions", "chunks"), [(True, 0, [8, 8, 4]), (False, 1, [7, 7, 8])])
def test_a_prompt_is_admitted_whole_or_piece_by_piece(serve, reserve_full_isl, preemptions, chunks):
    """The second needs five blocks and four are left: it waits, or starts at once and has to start again."""
    log = serve(
        num_blocks=8,
        max_num_batched_tokens=8,
        reserve_full_isl=reserve_full_isl,
        requests=[Arrival(0.0, prompt=8, output=4), Arrival(0.5, prompt=20, output=1)],
    )
    assert (log.preemptions["b"], log.tokens("b")) == (preemptions, chunks)


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_a_request_that_can_never_fit_is_rejected_and_the_rest_go_on(serve, enable_prefix_caching):
    log = serve(
        num_blocks=10,
        enable_prefix_caching=enable_prefix_caching,
        requests=[Arrival(0.0, prompt=100, output=1), Arrival(0.0, prompt=4, output=2)],
    )
    assert log.rejected == ["a"]
    assert log.finish_s == {"a": None, "b": 2.0}


def test_a_request_that_outgrows_the_pool_alone_is_rejected_in_the_end(serve):
    """Its prompt fits; with 36 tokens it holds all nine blocks, and what it preempts for a tenth is itself."""
    log = serve(num_blocks=10, requests=[Arrival(0.0, prompt=20, output=50), Arrival(0.5, prompt=4, output=2)])
    assert log.rejected == ["a"]
    assert log.finish_s["b"] is not None


# Prefix hits


def test_the_last_block_of_a_repeated_prompt_is_computed_again(serve):
    """Something must be left to sample from, and hits are whole blocks: 304 of 320 tokens."""
    log = serve(block_size=16, requests=[Arrival(at_s, 320, 1, prefix_ids=tuple(range(20))) for at_s in (0.0, 1.0)])
    assert log.cached_tokens == {"a": 0, "b": 304}


def test_a_hit_ends_where_prompts_part(serve):
    log = serve(requests=[Arrival(0.0, 16, 1, prefix_ids=(1, 2, 3)), Arrival(1.0, 16, 1, prefix_ids=(1, 2, 4))])
    assert log.cached_tokens == {"a": 0, "b": 8}


def test_what_a_step_computes_is_hit_by_the_next_request_of_the_same_step(serve):
    """Its blocks are hashed when they are taken, as in vLLM."""
    log = serve(requests=[Arrival(0.0, 13, 1, prefix_ids=(1, 2, 3))] * 2)
    assert log.steps == [{"a": 13, "b": 1}]


def test_without_a_prefix_cache_nothing_is_hit(serve):
    requests = [Arrival(0.0, 13, 1, prefix_ids=(1, 2, 3)), Arrival(1.0, 13, 1, prefix_ids=(1, 2, 3))]
    assert serve(requests, enable_prefix_caching=False).cached_tokens == {"a": 0, "b": 0}


def test_an_answer_is_hit_by_the_turn_that_repeats_it(serve):
    """The ids reach beyond the first prompt: its answer is the beginning of the second one."""
    ids = (1, 2, 3, 4)
    log = serve(requests=[Arrival(0.0, 8, 9, prefix_ids=ids), Arrival(9.0, 20, 1, prefix_ids=ids)])
    assert log.cached_tokens == {"a": 0, "b": 16}


def test_evicted_blocks_are_no_hit(serve):
    """Five blocks cannot keep a prompt of four while another of four passes through."""
    ids = (1, 2, 3, 4)
    requests = [Arrival(0.0, 17, 1, prefix_ids=ids), Arrival(1.0, 16, 1), Arrival(2.0, 17, 1, prefix_ids=ids)]
    assert serve(requests, num_blocks=6).cached_tokens == {"a": 0, "b": 0, "c": 4}


# Windows and states


@pytest.mark.parametrize(("layer", "rejected"), [(full(4), ["a"]), (sliding(8, 4), [])])
def test_a_window_lets_a_long_request_through_a_small_pool(serve, layer, rejected):
    """100 tokens take 25 blocks of full attention; a window of eight never holds more than six."""
    log = serve(layers=[layer], num_blocks=7, max_num_batched_tokens=8, requests=[Arrival(0.0, prompt=100, output=9)])
    assert log.rejected == rejected


def test_windows_beside_full_attention_hit_only_where_the_window_is_cached(serve):
    """By default the windows at a prompt's end are kept: the same prompt hits, one that parts before does not."""
    ids = tuple(range(1, 11))
    log = serve(
        layers=[full(4), sliding(8, 4)],
        requests=[
            Arrival(0.0, 41, 1, prefix_ids=ids),
            Arrival(1.0, 41, 1, prefix_ids=ids),
            Arrival(2.0, 41, 1, prefix_ids=(*ids[:5], 99)),
        ],
    )
    assert log.cached_tokens == {"a": 0, "b": 40, "c": 0}


@pytest.mark.parametrize(
    ("budget", "block", "prompt", "chunks"),
    [
        (8192, 528, 5500, [5280, 220]),
        (2048, 528, 5500, [1584, 1584, 1584, 528, 220]),
        (2048, 1056, 6500, [1056] * 6 + [164]),
        (2048, 1600, 6500, [1600] * 4 + [100]),
        (2048, 2096, 6500, [2048, 48] * 3 + [212]),
        (512, 528, 2200, [512, 16] * 4 + [88]),
    ],
)
def test_a_prompt_is_cut_where_mamba_states_are_kept(serve, budget, block, prompt, chunks):
    """What vLLM's scheduler was seen to do with one request: up to 48 % of a budget cannot be used."""
    log = serve(
        layers=[full(block), mamba(block)],
        block_size=block,
        max_num_batched_tokens=budget,
        requests=[Arrival(0.0, prompt, output=1)],
    )
    assert log.tokens("a") == chunks


def test_a_state_is_not_hit_before_its_writer_has_gone_on(serve):
    """Two equal prompts: the second waits until the first has left the state behind, then resumes from it."""
    log = serve(layers=[full(4), mamba(4)], requests=[Arrival(0.0, 9, output=3, prefix_ids=(1, 2))] * 2)
    assert log.steps[:3] == [{"a": 8}, {"a": 1}, {"a": 1, "b": 1}]


def test_without_a_prefix_cache_states_cut_no_prompt(serve):
    log = serve(
        layers=[full(4), mamba(4096, "none", page_tokens=4)],
        enable_prefix_caching=False,
        max_num_batched_tokens=10,
        requests=[Arrival(0.0, prompt=25, output=1)],
    )
    assert log.tokens("a") == [10, 10, 5]


def test_to_reject_a_request_takes_no_step(serve):
    """The second arrives a moment after the first was turned away, and is served at once."""
    log = serve(num_blocks=3, requests=[Arrival(0.0, prompt=100, output=1), Arrival(0.25, prompt=4, output=1)])
    assert (log.rejected, log.finish_s["b"]) == (["a"], 1.25)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_whoever_is_preempted_too_often_ends_in_some_way(serve, monkeypatch, async_scheduling):
    """Rejected at the first preemption in vain, unless its last token is on its way: then it finishes."""
    monkeypatch.setattr("simulator.step_scheduler.MOST_PREEMPTIONS_IN_VAIN", 0)
    for seed in range(100):
        rng = random.Random(seed)
        requests = [
            Arrival(float(rng.randrange(4)), prompt=rng.randint(1, 12), output=rng.randint(1, 8))
            for _ in range(rng.randint(2, 6))
        ]
        log = serve(requests, num_blocks=rng.randint(6, 9), async_scheduling=async_scheduling, max_model_len=20)
        finished = [name for name, finish_s in log.finish_s.items() if finish_s is not None]
        assert sorted(finished + log.rejected) == list(log.requests)
