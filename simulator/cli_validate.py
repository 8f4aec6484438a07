"""`kvplan validate` on the command line."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["validate"]


def validate(
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with measured/ and traces/ of the run on an RTX 4090: docs/validation.md."),
    ] = None,
    step_times: Annotated[
        list[str] | None,
        typer.Option(help="Of the published sample; may be given several times.", show_default="silicon, roofline"),
    ] = None,
    every: Annotated[int, typer.Option(help="Only each so many-th point of the sample, for a quick look.")] = 1,
    workers: Annotated[int | None, typer.Option(help="Points side by side. [as many as there are cores]")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the tables and pictures.")] = Path("validation"),
) -> None:
    """Replay what was measured on real servers, and say how far off the replays are.

    Examples: kvplan validate --every 20
    kvplan validate --step-times roofline --data ../data
    """
    from simulator.validate_command import ValidateOptions, run_validate

    run_validate(ValidateOptions(data, tuple(step_times or ("silicon", "roofline")), every, workers, out))
