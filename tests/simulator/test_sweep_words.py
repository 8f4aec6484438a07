"""What a study says of itself, sentence by sentence."""

import datetime

from simulator.prices import Price
from simulator.step_times import how_far_off
from simulator.study_effects import effects_on, front, measure_named
from simulator.sweep_words import narrate, slo_in_words
from tests.simulator.studies import made_up

BLOCKS = {"block_size": (16, 32)}
GRID = {"gpu": ("l40s", "h200"), "max_num_seqs": (8, 64)}


def said(table, heading: str) -> list[str]:
    return narrate(table).get(heading, [])


def grid(*figures, **options):
    """Points of GRID in order, with these figures."""
    settings = [{"gpu": gpu, "max_num_seqs": seqs} for gpu in GRID["gpu"] for seqs in GRID["max_num_seqs"]]
    return made_up(GRID, list(zip(settings, figures, strict=True)), **options)


def pair(first, second, **options):
    return made_up(BLOCKS, [({"block_size": 16}, first), ({"block_size": 32}, second)], **options)


def faster(tokens_per_s: float, **figures):
    """So many output tokens a second, for the same money."""
    cost = {"dollars_per_million_output_tokens": 1000 / tokens_per_s}
    return {"output_tokens_per_s": tokens_per_s, **cost, **figures}


# ---------------------------------------------------------------------------------------------- what it found


def test_the_best_point_of_each_measure_is_named():
    table = pair(faster(100.0, ttft_p99_s=0.5), faster(200.0, ttft_p99_s=0.9))
    assert said(table, "What it found") == [
        "All 2 points finished.",
        "Highest output tokens/s: 200 at block_size 32.",
        "Lowest TTFT p99: 500 ms at block_size 16.",
        "TPOT p99 is the same at all points: 20 ms.",
        "Lowest cost per million output tokens: $5.00 at block_size 32.",
        "2 points trade cost per million output tokens against TTFT p99: block_size 32; and block_size 16.",
        "In cost per million output tokens and TPOT p99 together nothing beats block_size 32.",
    ]


def test_the_axis_that_matters_most_comes_first():
    table = grid(faster(100.0), faster(300.0), faster(200.0), faster(600.0))
    sentences = said(table, "What it found")
    assert (
        "Output tokens/s depends most on max_num_seqs: 150 at 8, 450 at 64, all else equal; then on gpu." in sentences
    )
    assert "TTFT p99 hardly depends on gpu and max_num_seqs." in sentences


def test_an_axis_is_judged_by_points_with_all_else_equal():
    """A refused point takes its fellows out of the comparison instead of shifting a mean."""
    table = grid(faster(100.0), faster(300.0), "it does not fit", faster(600.0))
    effects = {effect.axis: dict(effect.means) for effect in effects_on(table, measure_named("output_tokens_per_s"))}
    assert effects == {"max_num_seqs": {"8": 100.0, "64": 300.0}, "gpu": {"l40s": 300.0, "h200": 600.0}}


def test_refused_points_are_counted_and_their_reason_told_once():
    table = grid("it does not fit", "it does not fit", {}, {})
    assert said(table, "What it found")[:2] == [
        "2 of 4 points finished; 2 were refused.",
        "l40s, max_num_seqs 8 and 1 other: it does not fit.",
    ]


def test_a_study_of_which_nothing_finished_says_only_that():
    assert narrate(pair("no", "no")) == {
        "What it found": ["0 of 2 points finished; 2 were refused.", "block_size 16 and 1 other: no."]
    }


def test_points_that_turned_requests_away_are_not_the_best():
    table = pair(faster(100.0), faster(900.0, finished=4, rejected=6))
    sentences = said(table, "What it found")
    assert sentences[1] == "1 point turned requests away and is not compared with the others."
    assert not any("block_size 32" in sentence for sentence in sentences)


def test_the_cheapest_point_that_meets_the_slo_is_named():
    slo = {"ttft_p99_s": 2.0, "e2e_p50_s": 10}
    table = pair(faster(100.0, meets_slo=True), faster(200.0, meets_slo=True), slo=slo)
    assert (
        "2 of 2 points meet the SLO (TTFT p99 at most 2 s and end-to-end latency p50 at most 10 s);"
        " the cheapest of them is block_size 32, $5.00 per million output tokens."
    ) in said(table, "What it found")


def test_no_point_may_meet_the_slo():
    table = pair({"meets_slo": False}, {"meets_slo": False}, slo={"tpot_p99_s": 0.01})
    assert "No point meets the SLO (TPOT p99 at most 10 ms)." in said(table, "What it found")


def test_an_slo_reads_as_a_sentence():
    assert slo_in_words({"tpot_p99_s": 0.05}) == "TPOT p99 at most 50 ms"


# -------------------------------------------------------------------------------- what binds, what would help


def test_what_binds_the_best_points_is_told():
    table = pair(faster(100.0, ttft_p99_s=0.2), faster(200.0, binding="kv_memory", ttft_p99_s=0.4))
    best = "highest output tokens/s and lowest cost per million output tokens"
    calm = "nothing binds: no queue stood, it could take more load"
    assert said(table, "What binds") == [
        f"At block_size 32 ({best}) KV cache memory seems to bind.",
        f"At block_size 16 (lowest TTFT p99 and lowest TPOT p99) {calm}.",
    ]
    remedies = "more ranks, a larger GPU, an fp8 KV cache, a smaller model"
    assert said(table, "What would change the answer")[:2] == [
        f"Where KV cache memory binds, more memory for KV cache ({remedies}) would help.",
        "Where nothing binds, more load would make tokens cheaper: the same GPUs would serve more of them.",
    ]


def test_a_best_value_at_the_end_of_its_axis_asks_for_more():
    table = pair(faster(100.0), faster(200.0))
    assert (
        "Output tokens/s and Cost per million output tokens: best at the end of block_size, 32; larger values were not"
        " tried."
    ) in said(table, "What would change the answer")


def test_the_smallest_value_there_can_be_asks_for_nothing():
    table = made_up({"replicas": (1, 2)}, [({"replicas": 1}, faster(200.0)), ({"replicas": 2}, faster(100.0))])
    assert not any("replicas" in sentence for sentence in said(table, "What would change the answer"))


def test_the_price_that_would_change_the_answer_is_told():
    table = made_up(
        {"gpu": ("l40s", "h200")},
        [({"gpu": "l40s"}, faster(200.0)), ({"gpu": "h200"}, faster(160.0, dollars_per_hour=5.0))],
    )
    assert "l40s stays the cheapest until its GPUs cost 25% more; then h200 is." in said(
        table, "What would change the answer"
    )


# ------------------------------------------------------------------------------------------ what it cannot know


def test_its_limits_are_told():
    prices = {"l40s": Price(1.5, "a list", datetime.date(2026, 9, 25))}
    assert said(pair({}, {}, prices=prices), "What it cannot know") == [
        f"{how_far_off(['roofline'])} Trust orders and ratios more than milliseconds.",
        "Each point is one run with one seed: there is no interval, and small differences may be chance.",
        "Prices are those of a table of 2026-09-25, not yours: l40s $1.5 an hour.",
        "Cost is at the load of the trace: a GPU is paid for while it idles, too.",
    ]


def test_seeds_are_told_as_means_and_how_far_chance_goes():
    axes = {"block_size": (16, 32), "seed": (0, 1)}
    rows = [
        ({"block_size": 16, "seed": 0}, faster(100.0, meets_slo=True)),
        ({"block_size": 16, "seed": 1}, faster(140.0, meets_slo=True)),
        ({"block_size": 32, "seed": 0}, faster(130.0, meets_slo=True)),
        ({"block_size": 32, "seed": 1}, faster(150.0, meets_slo=False)),
    ]
    table = made_up(axes, rows, slo={"ttft_p99_s": 1.0})
    sentences = said(table, "What it found")
    assert sentences[:3] == [
        "All 4 points finished.",
        "All that follows is in means over 2 seeds.",
        "Highest output tokens/s: 140 at block_size 32.",
    ]
    assert any(sentence.startswith("One point meets the SLO") for sentence in sentences)
    assert (
        "2 seeds differ by 26.1% in output tokens/s: of points with different traffic, smaller differences may be"
        " chance."
    ) in said(table, "What it cannot know")


def test_a_point_of_which_a_seed_was_lost_has_no_mean():
    axes = {"block_size": (16, 32), "seed": (0, 1)}
    rows = [({"block_size": block, "seed": seed}, {}) for block in (16, 32) for seed in (0, 1)]
    table = made_up(axes, [*rows[:3], (rows[3][0], "no")])
    means = [(row.label, row.status) for row in table.over_seeds.rows]
    assert means == [("block_size 16", "finished"), ("block_size 32", "refused")]


def test_without_a_price_gpu_hours_stand_in():
    no_price = {"dollars_per_million_output_tokens": None, "dollars_per_hour": None}
    table = pair(no_price, {**no_price, "gpu_hours_per_million_output_tokens": 1.4})
    assert "Lowest GPU hours per million output tokens: 1.4 at block_size 32." in said(table, "What it found")
    assert "Where a GPU has no known price, cost is unknown: state it in [prices]; GPU hours stand in for it." in said(
        table, "What it cannot know"
    )


def test_stated_step_times_are_no_roofline():
    table = pair({}, {}, base={"step_time_s": 0.02})
    assert said(table, "What it cannot know")[0] == "Every step took the stated time: speeds of GPUs are not in it."


# ----------------------------------------------------------------------------------------------------- fronts


def test_the_front_has_who_nobody_beats():
    figures = [(1.0, 9.0), (2.0, 4.0), (3.0, 5.0), (4.0, 1.0), (2.0, 4.0)]
    table = made_up(
        {"seed": (0, 1, 2, 3, 4)},
        [
            ({"seed": seed}, {"dollars_per_million_output_tokens": cost, "ttft_p99_s": ttft})
            for seed, (cost, ttft) in enumerate(figures)
        ],
    )
    best = front(table.rows, measure_named("dollars_per_million_output_tokens"), measure_named("ttft_p99_s"))
    assert [row.settings["seed"] for row in best] == [0, 1, 4, 3]
