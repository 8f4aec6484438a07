"""Draw a request's life: its phases and computed tokens over time, and how far each attention type hits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from simulator.plots import INK
from simulator.story import Admission, Attempt, Story, TypeHit
from simulator.story_words import type_in_words
from simulator.summary_table import format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_story"]

# Okabe and Ito's colours, which colour-blind readers can tell apart.
_BLUE, _SKY, _GREEN, _ORANGE, _VERMILION, _GREY = "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#BBBBBB"
_PHASES = {"queued": _GREY, "prefill": _ORANGE, "decode": _GREEN, "preempted": _VERMILION}
_STYLE = {
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
    "font.size": 9.0, "axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left",
}  # fmt: skip
_WIDTH_INCHES = 11.0
_DOTS_PER_INCH = 130
_LETTERS = 145
"""Of a line of text across the picture."""
_SHOWN_ADMISSIONS = 3
_LONGEST_QUEUE = 0.2
"""Of the picture's time: a longer one is cut off, lest nothing else be seen."""
_TEXT_ROW, _BAR_ROW = 0.24, 0.42
"""Inches."""
_LEAST_SHARE = 0.002
"""Of the width: what is shorter is drawn as wide as that."""


def draw_story(story: Story, path: str | Path) -> None:
    """Write a PNG to `path`: a lane of phases, computed tokens below it, and the hits of the first admissions."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    admissions = [attempt.admission for attempt in story.attempts if attempt.admission is not None]
    shown = [admission for admission in admissions if admission.types][:_SHOWN_ADMISSIONS]
    heights = [0.5, 2.2, *map(_height_inches, shown)]
    with rc_context(_STYLE):  # type: ignore[arg-type]  # its keys are literals
        figure = Figure(figsize=(_WIDTH_INCHES, sum(heights) + 1.2 + 0.55 * len(shown)), layout="constrained")
        FigureCanvasAgg(figure)
        lane, line, *bars = figure.subplots(len(heights), 1, height_ratios=heights)
        figure.suptitle(_title(story), x=0.01, ha="left")
        begin_s = _begin_s(story)
        _draw_lane(lane, story, begin_s)
        _draw_computed(line, story, begin_s)
        for nth, (axes, admission) in enumerate(zip(bars, shown, strict=True)):
            _draw_hits(axes, admission, nth)
        figure.savefig(path, format="png", dpi=_DOTS_PER_INCH)


def _title(story: Story) -> str:
    return (
        f"Request {story.request_id}: {story.prompt_tokens:,} prompt tokens, {story.output_tokens:,} output tokens,"
        f" {story.status} {format_seconds(story.end_s - story.arrival_s)} after its arrival"
    )


def _begin_s(story: Story) -> float:
    """Where the time axis begins: at the arrival, unless the wait would leave no room for the rest."""
    if story.first_scheduled_s is None:
        return story.arrival_s
    rest_s = story.end_s - story.first_scheduled_s
    return max(story.arrival_s, story.first_scheduled_s - rest_s * _LONGEST_QUEUE / (1 - _LONGEST_QUEUE))


# Over time.


def _phases(story: Story) -> Iterator[tuple[str, float, float]]:
    """(phase, start, end) in seconds, in order."""
    for nth, attempt in enumerate(story.attempts):
        if attempt.waits:
            yield "preempted" if nth else "queued", attempt.waits[0].start_s, attempt.waits[-1].end_s
        for chunk in attempt.chunks:
            yield "prefill", chunk.start_s, chunk.end_s
        if attempt.decode is not None:
            yield "decode", attempt.decode.start_s, attempt.decode.end_s


def _draw_lane(axes: Axes, story: Story, begin_s: float) -> None:
    from matplotlib.patches import Patch

    _limit_time(axes, story, begin_s)
    least_s = _LEAST_SHARE * (story.end_s - begin_s)
    phases = list(_phases(story))
    for phase, start_s, end_s in phases:
        axes.barh(
            0, max(end_s - start_s, least_s), left=start_s, height=0.8, color=_PHASES[phase],
            edgecolor="white", linewidth=0.4,
        )  # fmt: skip
    for attempt in story.attempts:
        if attempt.preemption is not None:
            axes.axvline(attempt.preemption.when.time_s, color=INK, linewidth=1.4)
    used = dict.fromkeys(phase for phase, _, _ in phases)
    handles = [Patch(color=_PHASES[phase], label=phase) for phase in used]
    axes.legend(
        handles=handles, ncols=len(handles), frameon=False, loc="lower left", bbox_to_anchor=(0, 1), borderpad=0
    )
    if begin_s > story.arrival_s:
        since = f"← queued since {story.arrival_s:,.3f} s"
        axes.text(begin_s, 0, f" {since}", va="center", fontsize=8)
    axes.set_yticks([])
    axes.tick_params(labelbottom=False)
    axes.spines["left"].set_visible(False)


def _draw_computed(axes: Axes, story: Story, begin_s: float) -> None:
    _limit_time(axes, story, begin_s)
    for attempt in story.attempts:
        times_s, tokens = _computed(attempt)
        axes.plot(times_s, tokens, color=_BLUE, linewidth=1.5)
        axes.fill_between(times_s, tokens, color=_BLUE, alpha=0.12, linewidth=0)
        if attempt.admission is not None and attempt.admission.hit_tokens:
            axes.plot(times_s[:1], tokens[:1], "o", color=_SKY, markeredgecolor=INK, markeredgewidth=0.6)
        if attempt.preemption is not None:
            at_s, lost = attempt.preemption.when.time_s, attempt.preemption.lost_tokens
            axes.plot([at_s, at_s], [0, lost], color=_VERMILION, linewidth=1.5, linestyle="--")
            axes.plot([at_s], [lost], "x", color=_VERMILION, markersize=8, markeredgewidth=2)
    axes.axhline(story.prompt_tokens, color=INK, linewidth=0.8, linestyle=":")
    axes.annotate(
        "prompt", (1, story.prompt_tokens), xycoords=("axes fraction", "data"), xytext=(2, 0),
        textcoords="offset points", va="center", fontsize=8,
    )  # fmt: skip
    axes.set_ylim(0, 1.08 * (story.prompt_tokens + story.output_tokens))
    axes.set_ylabel("Computed tokens")
    axes.set_xlabel("Simulated time (s); dot: prefix hit, cross: preemption")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_major_formatter("{x:,.6g}")
    axes.grid(alpha=0.2, linewidth=0.5)


def _computed(attempt: Attempt) -> tuple[list[float], list[float]]:
    """Corners of the line of computed tokens."""
    if attempt.admission is None:
        return [], []
    times_s, tokens = [attempt.admission.when.time_s], [float(attempt.admission.hit_tokens)]
    for chunk in attempt.chunks:
        times_s += [chunk.start_s, chunk.end_s]
        tokens += [float(chunk.computed_before), float(chunk.computed_before + chunk.tokens)]
    if attempt.decode is not None:
        times_s.append(attempt.decode.end_s)
        tokens.append(float(attempt.decode.computed_after))
    return times_s, tokens


def _limit_time(axes: Axes, story: Story, begin_s: float) -> None:
    end_s = max(story.end_s, begin_s + 1e-6)
    axes.set_xlim(begin_s, end_s + 0.005 * (end_s - begin_s))


# Hits.


def _height_inches(admission: Admission) -> float:
    return sum(_BAR_ROW + _TEXT_ROW * len(_words(kind, admission)) for kind in admission.types)


def _words(kind: TypeHit, admission: Admission) -> list[str]:
    """Lines of text above a type's bar."""
    return wrap(type_in_words(kind, admission), _LETTERS)


def _draw_hits(axes: Axes, admission: Admission, nth: int) -> None:
    """A bar for each type, up to where it alone would hit, darker up to where all agree."""
    at, most, hit = 0.0, max(admission.max_hit_tokens, 1), admission.hit_tokens
    cutter = admission.cuts[-1].name if admission.cuts and hit < admission.max_hit_tokens else None
    for kind in admission.types:
        for text in _words(kind, admission):
            axes.text(0, at + _TEXT_ROW / 2, text, va="center", fontsize=8.5)
            at += _TEXT_ROW
        middle = at + _BAR_ROW * 0.4
        axes.barh(middle, most, height=0.2, color="none", edgecolor=_GREY, linewidth=0.8)
        axes.barh(middle, kind.tokens, height=0.2, color=_SKY)
        axes.barh(middle, min(kind.tokens, hit), height=0.2, color=_BLUE)
        if kind.name == cutter:
            axes.plot([hit, hit], [middle - 0.15, middle + 0.15], color=_VERMILION, linewidth=3)
        at += _BAR_ROW
    axes.set_ylim(at, 0)
    axes.set_xlim(0, most * 1.005)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    which = "Prefix hit" if not nth else f"Prefix hit after preemption {nth}"
    cut = "" if cutter is None else f", cut by {cutter}"
    axes.set_title(f"{which}, at {admission.when.time_s:,.3f} s: {hit:,} of {most:,} tokens{cut}", fontsize=9.5)
    axes.set_xlabel(
        "Tokens from the beginning. Dark: all types have them; light: this one has; red: the cut", fontsize=8.5
    )
