"""`kvplan explain`: the life of one request of a run, in words and as a picture."""

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from simulator.explain_run import explain_run, find_recorded, scenario_of_run
from simulator.progress import RunProgress
from simulator.run_folder import write_whole
from simulator.scenario import ScenarioError
from simulator.story import Story
from simulator.story_words import sections

__all__ = ["explain_request"]


def explain_request(run: Path, request_id: str, trace: Path | None, out: Path | None, *, as_json: bool) -> None:
    """Print a request's life and draw it. Raises ScenarioError, one line each, for what is not there."""
    scenario = scenario_of_run(run, trace)
    recorded = find_recorded(run, request_id)
    with RunProgress(scenario, shown=not as_json, num_requests=recorded.num_ended_before + 1) as progress:
        story = explain_run(run, request_id, progress.trace, progress.update)
    picture = out or run / f"explain-{_file_name(request_id)}.png"
    _draw(story, picture)
    if as_json:
        plain = {**story.to_json(), "num_requests_of_this_id": len(recorded.rows)}
        Console(soft_wrap=True).print_json(json.dumps(plain), highlight=False)
        return
    _print(story, num_alike=len(recorded.rows) - 1)
    Console().print(f"Picture: {picture}", highlight=False, soft_wrap=True)


def _file_name(request_id: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in request_id)


def _draw(story: Story, picture: Path) -> None:
    from simulator.plots_story import draw_story

    try:
        picture.parent.mkdir(parents=True, exist_ok=True)
        write_whole(picture, lambda path: draw_story(story, path))
    except OSError as error:
        raise ScenarioError(f"--out: {picture} cannot be written: {error.strerror}") from None


def _print(story: Story, num_alike: int) -> None:
    console = Console(highlight=False)
    if num_alike:
        console.print(f"! {num_alike + 1} requests have this id: this is the first that arrived", style="yellow")
    for section in sections(story):
        console.print(Text(section.heading, style="bold"))
        table = Table.grid(padding=(0, 2))
        table.add_column(min_width=12)
        table.add_column()
        for when, sentence in section.lines:
            table.add_row(Text(f"  {when}"), Text(sentence))
        console.print(table)
