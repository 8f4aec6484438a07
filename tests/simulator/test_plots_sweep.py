"""Pictures of a study: every kind of grid can be drawn, the same twice, and nobody is left out."""

from functools import partial

import pytest

from simulator.plots import as_svg
from simulator.plots_sweep import draw_fronts, draw_measures, fronts_inches, has_front, measures_inches
from tests.simulator.studies import made_up


def points(**axes):
    """Every combination of the axes, each a little different."""
    settings = [{}]
    for name, values in axes.items():
        settings = [{**each, name: value} for each in settings for value in values]
    return [
        (each, {"ttft_p99_s": 0.1 + 0.01 * nth, "dollars_per_million_output_tokens": 9.0 - 0.1 * nth})
        for nth, each in enumerate(settings)
    ]


ONE = {"rate_scale": (1, 2.5, 10, 100)}
TWO = {"gpu": ("l40s", "h200"), "rate_scale": (1, 2)}
THREE = {"gpu": ("l40s", "h200"), "kv_cache_dtype": ("auto", "fp8"), "max_num_seqs": (8, 64)}
FOUR = {**THREE, "enable_prefix_caching": (True, False)}
MANY = {"max_num_seqs": (1, 2, 3, 4, 5, 6, 7, 8), "block_size": tuple(range(16, 160, 16))}
NAMES = {"grouping": ("vllm", "per-layer", "document-mamba", "two-level", "unified")}


def measures_of(table) -> str:
    return as_svg(partial(draw_measures, table), measures_inches(table)).decode()


@pytest.mark.parametrize("axes", [ONE, TWO, THREE, FOUR, MANY, NAMES], ids="-".join)
def test_a_panel_for_each_measure_whatever_varies(axes):
    table = made_up(axes, points(**axes))
    picture = measures_of(table)
    for title in ("Output tokens/s", "TTFT p99", "TPOT p99", "Cost per million output tokens", "Prefix cache hit rate"):
        assert f">{title}</text>" in picture


def test_equal_studies_give_equal_pictures():
    assert measures_of(made_up(TWO, points(**TWO))) == measures_of(made_up(TWO, points(**TWO)))


def test_the_number_is_along_the_axis_and_names_are_colours():
    picture = measures_of(made_up(TWO, points(**TWO)))
    assert picture.count(">rate_scale</text>") == 6
    assert (">l40s</text>" in picture, ">h200</text>" in picture) == (True, True)


def test_points_without_measures_are_marked():
    rows = points(**TWO)
    table = made_up(TWO, [(rows[0][0], "it does not fit"), *rows[1:]])
    assert ">refused or failed</text>" in measures_of(table)
    assert ">refused or failed</text>" not in measures_of(made_up(TWO, rows))


def test_a_list_is_drawn_point_by_point():
    rows = [({"gpu": "l40s", "block_size": 16}, {}), ({"gpu": "h200", "block_size": 32}, "no")]
    picture = measures_of(made_up({"gpu": ("l40s", "h200"), "block_size": (16, 32)}, rows, is_grid=False))
    assert (">l40s, block_size 16</text>" in picture, ">h200, block_size 32</text>" in picture) == (True, True)


def test_points_of_the_front_have_letters_and_names():
    table = made_up(ONE, points(**ONE))
    picture = as_svg(partial(draw_fronts, table), fronts_inches(table)).decode()
    assert all(f">{letter}</text>" in picture for letter in "ABCD")
    assert "A  rate_scale 100" in picture


def test_one_point_has_no_front():
    table = made_up({"seed": (0, 1)}, [({"seed": 0}, {}), ({"seed": 1}, "no")])
    assert not has_front(table)
