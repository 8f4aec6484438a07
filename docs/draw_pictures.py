"""Draw the pictures of README.md and docs/studies.md again: python docs/draw_pictures.py [FOLDER]."""

import sys
from functools import partial
from pathlib import Path

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from simulator import Scenario, recorder, simulate
from simulator.executors import ThisProcess
from simulator.plots import as_png, draw_pool_bytes, draw_requests
from simulator.plots_sweep import draw_fronts, draw_measures, fronts_inches, measures_inches
from simulator.prices import known_prices
from simulator.study_file import read_study
from simulator.study_run import run_points
from simulator.study_table import tabulate

STYLE = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.alpha": 0.2,
    "legend.frameon": False,
}
QUESTION = Scenario(model="gemma-3-27b", gpu="h100-80gb", rate_scale=2.0)


def draw(path: Path) -> None:
    recorder.BATCHES_PER_SAMPLE = 8  # finer than a run takes them: this picture is about the bytes
    result = simulate(QUESTION)
    with rc_context(STYLE):
        figure = Figure(figsize=(9.0, 5.4), layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)
        upper, lower = figure.subfigures(2, 1, height_ratios=(1.15, 1))
        draw_pool_bytes(result, upper)
        draw_requests(result, lower)
        figure.align_ylabels()
        figure.savefig(path, dpi=110, metadata={"Software": None})


def draw_study(file: Path, measures: Path, fronts: Path) -> None:
    study = read_study(file)
    outcomes = {}
    run_points({each.point.key: each.point for each in study.points}, ThisProcess(), outcomes.__setitem__)
    table = tabulate(study, outcomes, known_prices())
    measures.write_bytes(as_png(partial(draw_measures, table), measures_inches(table)))
    fronts.write_bytes(as_png(partial(draw_fronts, table), fronts_inches(table)))


if __name__ == "__main__":
    docs = Path(__file__).parent
    pictures = Path(sys.argv[1]) if len(sys.argv) > 1 else docs / "pictures"
    draw(pictures / "one_h100.png")
    draw_study(docs / "example_study.toml", pictures / "study_measures.png", pictures / "study_fronts.png")
