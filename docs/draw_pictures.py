"""Draw the pictures of the README, docs/fleets.md and docs/studies.md again: python docs/draw_pictures.py [FOLDER]."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from simulator import Scenario, simulate
from simulator.deployment import deploy
from simulator.disaggregation import Servers, simulate_disaggregated
from simulator.executors import ThisProcess
from simulator.link import Link
from simulator.plots import as_png, draw_pool_bytes, draw_requests
from simulator.plots_disaggregation import draw_stages, draw_travelling
from simulator.plots_sweep import draw_fronts, draw_measures, fronts_inches, measures_inches
from simulator.prices import known_prices
from simulator.router import LeastLoaded
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


HYBRIDS = ("gemma-3-27b", "jamba-v0.1", "llama-4-scout")


def draw(path: Path, height_inches: float, fill: Callable[[Figure], None]) -> None:
    with rc_context(STYLE):
        figure = Figure(figsize=(9.0, height_inches), layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)
        fill(figure)
        figure.savefig(path, dpi=110, metadata={"Software": None})


def one_h100(figure: Figure) -> None:
    result = simulate(QUESTION, batches_per_sample=8)  # more often than a run does: this picture is about the bytes
    upper, lower = figure.subfigures(2, 1, height_ratios=(1.15, 1))
    draw_pool_bytes(result, upper)
    draw_requests(result, lower)
    figure.align_ylabels()


def travelling(figure: Figure) -> None:
    servers = {
        name: deploy(Scenario(model=name, step_time_s=1.0, num_gpu_blocks_override=40_000, max_model_len=40_000))
        for name in HYBRIDS
    }
    draw_travelling(servers, [1, *range(200, 32_001, 200)], figure)


def stages(figure: Figure) -> None:
    """Two prefill replicas at a quarter of a network card, three times the embedded traffic."""
    server = Scenario(model="gemma-3-27b", gpu="h200", rate_scale=3.0)
    prefill, decode = Servers([server] * 2, LeastLoaded()), Servers([server], LeastLoaded())
    draw_stages(simulate_disaggregated(prefill, decode, Link(12.5e9, 1e-5)), figure)


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
    draw(pictures / "one_h100.png", 5.4, one_h100)
    draw(pictures / "travelling.png", 3.1, travelling)
    draw(pictures / "stages.png", 3.4, stages)
    draw_study(docs / "example_study.toml", pictures / "study_measures.png", pictures / "study_fronts.png")
