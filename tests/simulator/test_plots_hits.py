"""What a prefix cache holds of a prompt, as a picture shows it."""

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from simulator.plots_hits import CachedPrompt, GroupBlocks, draw_prompts, look_up
from tests.kvcache.pools import full, manager_of, request_of, serve, sliding

PROMPT = range(160)
PARTS_AT_96 = [*range(96), *range(1000, 1064)]


@pytest.fixture
def manager():
    """Full attention and two groups with windows of two blocks; a prompt of ten blocks was served."""
    manager = manager_of(full(), sliding(33), sliding(33))
    serve(manager, PROMPT)
    return manager


def seen(manager, tokens) -> CachedPrompt:
    return look_up(manager, request_of(manager, tokens))


def cached(group: GroupBlocks) -> list[int]:
    return [position for position, is_cached in enumerate(group.is_cached) if is_cached]


def test_a_group_has_a_row_with_the_blocks_that_can_be_hit(manager):
    """Full attention has them all, windows those before the prompt's last boundary."""
    groups = seen(manager, PROMPT).groups
    rows = [(group.kind, cached(group), group.read) for group in groups]
    window = ("sliding", [7, 8], range(7, 9))
    assert rows == [("full", list(range(10)), range(9)), window, window]


def test_where_prompts_part_blocks_are_cached_and_not_read(manager):
    prompt = seen(manager, PARTS_AT_96)
    assert (prompt.hit_tokens, [cached(group) for group in prompt.groups]) == (0, [list(range(6)), [], []])
    assert not any(group.read for group in prompt.groups)


def test_looking_leaves_no_trace(manager):
    """The request that was looked up is not noted as one that parts from the first: what is seen is the same again."""
    first = seen(manager, PARTS_AT_96)
    assert (seen(manager, PARTS_AT_96), serve(manager, PARTS_AT_96)) == (first, 0)


def test_the_picture_has_a_panel_for_each_prompt_and_says_its_hit(manager):
    figure = Figure()
    draw_prompts({"server": {"again": seen(manager, PROMPT), "other": seen(manager, PARTS_AT_96)}}, figure)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "server\nagain: a hit of 144 of 160 tokens",
        "other: a hit of 0 of 160 tokens",
    ]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["full", "sliding\n2 groups"]


def test_blocks_are_drawn_where_their_tokens_are(manager):
    """The first row is full attention's: nine blocks that are read, one that is not, none missing."""
    figure = Figure()
    draw_prompts({"server": {"again": seen(manager, PROMPT)}}, figure)
    rows = [
        bars for bars in figure.axes[0].collections if bars.get_paths() and bars.get_paths()[0].vertices[0, 1] < 0.5
    ]
    spans = {
        to_hex(bars.get_facecolor()[0]): [tuple(path.vertices[[0, 2], 0]) for path in bars.get_paths()] for bars in rows
    }
    assert spans == {
        "#0072b2": [(start, start + 16) for start in range(0, 144, 16)],
        "#56b4e9": [(144, 160)],
    }


def test_columns_may_have_different_lengths(manager):
    figure = Figure()
    draw_prompts({"a": {"again": seen(manager, PROMPT)}, "b": dict.fromkeys("xy", seen(manager, PROMPT))}, figure)
    assert [axes.get_visible() for axes in figure.axes] == [True, True, False, True]
