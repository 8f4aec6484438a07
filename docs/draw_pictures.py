"""Draw the README's picture again: python docs/draw_pictures.py [FILE]."""

import sys
from pathlib import Path

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from simulator import Scenario, recorder, simulate
from simulator.plots import draw_pool_bytes, draw_requests

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


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "pictures" / "one_h100.png")
