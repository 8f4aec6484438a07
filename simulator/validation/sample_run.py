"""Replay the points of the published sample side by side."""

from collections.abc import Callable, Iterable
from concurrent.futures import as_completed

from simulator.executors import Executors
from simulator.validation.silicon_sample import Outcome, Point, replay

__all__ = ["replay_points"]


def replay_points(
    points: Iterable[Point], step_times: str, executors: Executors, on_ended: Callable[[bool], None]
) -> tuple[dict[Point, Outcome], dict[Point, str]]:
    """What each point comes to with these step times; and why some come to nothing.

    `on_ended(has_finished)` is told of each point. Points of one server are neighbours, because it shares its tables.
    """
    ordered = sorted(points, key=str)
    outcomes: dict[Point, Outcome] = {}
    refused: dict[Point, str] = {}
    with executors.open() as executor:
        point_of = {executor.submit(replay, point, step_times): point for point in ordered}
        for future in as_completed(point_of):
            point = point_of[future]
            try:
                outcomes[point] = future.result()
            except ValueError as error:  # a server that would not start
                refused[point] = str(error)
            on_ended(point in outcomes)
    return {point: outcomes[point] for point in ordered if point in outcomes}, refused
