"""Draw the README's picture again: python docs/draw_pictures.py [FOLDER]."""

import sys
from pathlib import Path

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from simulator import Scenario, simulate
from simulator.plots import draw_kv_usage, draw_pool_bytes, draw_requests

STYLE = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.2,
    "legend.frameon": False,
}
QUESTION = Scenario(model="gemma-3-27b", gpu="h100-80gb", max_model_len=32768, rate_scale=2.0)


def draw(variant: str, path: Path) -> None:
    upper_draw = {"pool_bytes": draw_pool_bytes, "kv_usage": draw_kv_usage}[variant]
    result = simulate(QUESTION)
    with rc_context(STYLE):
        figure = Figure(figsize=(9.0, 5.6), layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)
        upper, lower = figure.subfigures(2, 1, height_ratios=(1.15, 1))
        upper_draw(result, upper)
        draw_requests(result, lower)
        figure.savefig(path, dpi=110)


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).with_name("pictures"))
    for variant in ("pool_bytes", "kv_usage"):
        draw(variant, folder / f"{variant}.png")
