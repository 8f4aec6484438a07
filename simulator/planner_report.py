"""A plan as files: `plan.json` with all that was found, and `report.html` with the evidence."""

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from simulator.confidence import Interval
from simulator.metrics import rounded
from simulator.planner import Candidate
from simulator.planner_runs import Finding, FleetVerdict
from simulator.planner_study import FleetPlan, binding
from simulator.planner_words import (
    cannot_know,
    dollars,
    fate_in_words,
    fleet_and_model,
    fleet_in_words,
    sentences,
    trade_in_words,
    verdict_in_words,
)
from simulator.run_folder import write_whole
from simulator.summary_table import format_number, format_seconds, format_share

__all__ = ["candidate_rows", "plan_to_json", "render_plan", "write_plan"]


def plan_to_json(plan: FleetPlan) -> dict[str, Any]:
    """The plan in plain JSON values, the same for the same question: no wall-clock time, and not what was kept."""
    search, traffic = plan.search, plan.evaluator.traffic
    found = {
        "question": {
            "models": plan.models,
            "slo": plan.evaluator.slo.text,
            "traffic": {name: _plain(value) for name, value in sorted(traffic.settings.items())},
            "requests_per_s": traffic.rate_per_s,
            "seeds": list(traffic.seeds),
            "warm_up": traffic.warm_up,
            "router": plan.evaluator.router or "round-robin",
            "max_gpus": search.limits.max_gpus,
            "spare": search.limits.spare,
            "prices": {server.gpu: server.price.to_json() for server in plan.servers.values()},
        },
        "answer": None if plan.best is None else _fleet(plan, plan.best),
        "next_best": [_fleet(plan, each) for each in plan.next_best],
        "best_of_others": {
            model: None if each is None else _fleet(plan, each) for model, each in plan.best_of_others.items()
        },
        "nearest_cheaper": None if plan.nearest_cheaper is None else _fleet(plan, plan.nearest_cheaper),
        "nearest_miss": None if plan.best or plan.nearest_miss is None else _fleet(plan, plan.nearest_miss),
        "binding": binding(plan),
        "reliefs": [
            {"what": each.what, "change": each.change, "before": each.before, "after": each.after}
            for each in plan.reliefs
        ],
        "sustained_per_s": {name: _interval(each.per_s) for name, each in plan.sustained.items()},
        "choices": [
            {
                "name": choice.name,
                "dollars_per_hour": choice.dollars_per_hour,
                "num_gpus": choice.num_gpus,
                "least_replicas": choice.least_replicas if choice.wall is None else None,
                "fate": search.fate(choice),
                "why": fate_in_words(plan, choice),
            }
            for choice in search.choices
        ],
        "simulated": [_fleet(plan, each) for each in search.verdicts],
        "sentences": sentences(plan),
        "cannot_know": cannot_know(plan),
    }
    return {key: rounded(value) for key, value in found.items()}


def _fleet(plan: FleetPlan, candidate: Candidate) -> dict[str, Any]:
    verdict, server = plan.verdict(candidate), plan.servers[candidate.choice.name]
    return {
        "name": candidate.choice.name,
        "model": server.model,
        "gpu": server.gpu,
        "tensor_parallel_size": server.tensor_parallel,
        "replicas": plan.search.bought(candidate),
        "spare_replicas": plan.search.limits.spare,
        "gpus": plan.search.num_gpus(candidate),
        "dollars_per_hour": plan.search.dollars_per_hour(candidate),
        "holds": verdict.holds,
        "verdict": verdict_in_words(verdict),
        "runs": verdict.num_runs,
        "limits": [
            {"name": each.name, "limit": each.limit, **_interval(each.interval), "ratio": each.ratio}
            for each in verdict.findings
        ],
        "growth": _interval(verdict.growth),
        "queue_grows": verdict.is_growing,
    }


def _interval(interval: Interval) -> dict[str, float]:
    return {"mean": interval.mean, "low": interval.low, "high": interval.high}


def _plain(value: Any) -> Any:
    return value.name if isinstance(value, Path) else value


# For people.


def candidate_rows(plan: FleetPlan) -> tuple[list[str], list[list[str]]]:
    """(headings, rows) of the fleets that matter: the best, those next to it, and the cheaper one that fails."""
    named = [] if plan.best is None else [("rent this", plan.best)]
    named += [(f"next best {nth}", each) for nth, each in enumerate(plan.next_best, 1)]
    others = [each for each in plan.best_of_others.values() if each is not None and each not in plan.next_best]
    named += [("other model", each) for each in sorted(others, key=plan.search.rank)]
    if plan.nearest_cheaper is not None:
        named.append(("cheaper", plan.nearest_cheaper))
    elif plan.best is None and plan.nearest_miss is not None:
        named.append(("nearest miss", plan.nearest_miss))
    slo = plan.evaluator.slo
    measures = [limit.name for limit in slo.limits] + ["Attained"] * (slo.attainment is not None)
    return ["", "Fleet", "GPUs", "$/hour", *measures, "Verdict"], [_row(plan, what, each) for what, each in named]


def _row(plan: FleetPlan, what: str, candidate: Candidate) -> list[str]:
    verdict = plan.verdict(candidate)
    measures = [_measure(finding) for finding in verdict.findings]
    number = len(plan.evaluator.slo.limits) + (plan.evaluator.slo.attainment is not None)
    measures += ["–"] * (number - len(measures))
    fleet = fleet_and_model(plan, candidate).replace(": ", ":\n")  # a terminal is narrow
    cost = dollars(plan.search.dollars_per_hour(candidate))
    return [what, fleet, f"{plan.search.num_gpus(candidate):,}", cost, *measures, verdict_in_words(verdict)]


def _measure(finding: Finding) -> str:
    return format_share(finding.interval.mean) if finding.is_share else format_seconds(finding.interval.mean)


def render_plan(plan: FleetPlan, folders: Mapping[str, str]) -> str:
    """The report as HTML; equal plans give equal text. `folders`: what each folder of a run beside it shows."""
    from markupsafe import Markup

    from simulator.plots import as_svg
    from simulator.plots_planner import RATES_INCHES, draw_fleets, draw_rates, fleets_inches
    from simulator.report import inline_svg, render_page

    drawn = []
    if plan.search.verdicts:
        drawn.append(
            (
                "All fleets",
                "Below the dashed line every limit is kept on average; a fleet holds where its whole interval does.",
                Markup(inline_svg("fleets", as_svg(partial(draw_fleets, plan), fleets_inches(plan)))),
            )
        )
    if plan.best is not None:
        drawn.append(
            (
                "What one replica sustains",
                "One replica alone at rising rates; dots are runs, the dotted line is the highest rate that holds.",
                Markup(inline_svg("rates", as_svg(partial(draw_rates, plan), RATES_INCHES))),
            )
        )
    words = sentences(plan)
    return render_page(
        "plan.html.j2",
        title=f"A fleet for {plan.evaluator.slo.text}",
        level="failed" if plan.best is None else "held",
        sentences=words,
        fleets=candidate_rows(plan),
        trades=[(fleet_in_words(plan, each), trade_in_words(plan, each)) for each in plan.next_best],
        reliefs=[[each.what, each.change, _times(each.before), _times(each.after)] for each in plan.reliefs],
        rates=[_rate_row(plan, name) for name in plan.sustained],
        choices=[
            [choice.name, dollars(choice.dollars_per_hour), fate_in_words(plan, choice)]
            for choice in plan.search.choices
        ],
        simulated=[_simulated_row(plan, each) for each in sorted(plan.search.verdicts, key=plan.search.rank)],
        prices=_price_rows(plan),
        cannot_know=cannot_know(plan),
        figures=drawn,
        folders=list(folders.items()),
    )


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if math.isfinite(ratio) else "–"


def _rate_row(plan: FleetPlan, name: str) -> list[str]:
    sustained = plan.sustained[name]
    rate, lows = sustained.per_s, [low for low, _ in sustained.brackets.values()]
    cost = plan.servers[name].dollars_per_hour
    spread = f"{format_number(min(lows))} to {format_number(max(lows))}"
    per_dollar = format_number(rate.mean * 3600 / cost) if cost else "–"
    return [name, format_number(rate.mean), spread, per_dollar]


def _simulated_row(plan: FleetPlan, candidate: Candidate) -> list[str]:
    verdict: FleetVerdict = plan.verdict(candidate)
    tightest = verdict.tightest
    return [
        fleet_in_words(plan, candidate),
        dollars(plan.search.dollars_per_hour(candidate)),
        f"{verdict.num_runs}",
        "–" if tightest is None else f"{tightest.name} {_times(tightest.ratio)}",
        verdict_in_words(verdict),
    ]


def _price_rows(plan: FleetPlan) -> list[list[str]]:
    servers = {server.gpu: server for server in plan.servers.values()}
    return [
        [gpu, dollars(server.price.dollars_per_hour), str(server.price.date or "–"), server.price.source]
        for gpu, server in sorted(servers.items())
    ]


def write_plan(plan: FleetPlan, text: str, folder: Path, folders: Mapping[str, str]) -> list[Path]:
    """Write plan.json, report.html and fleets.png into a folder that is there, each whole or not at all.

    `text` is that of plan.json.
    """
    from simulator.plots import as_png
    from simulator.plots_planner import draw_fleets, fleets_inches

    page = render_plan(plan, folders)
    files = [folder / "plan.json", folder / "report.html"]
    write_whole(files[0], lambda path: path.write_text(text, encoding="utf-8"))
    write_whole(files[1], lambda path: path.write_text(page, encoding="utf-8"))
    if plan.search.verdicts:
        picture = as_png(partial(draw_fleets, plan), fleets_inches(plan))
        files.append(folder / "fleets.png")
        write_whole(files[-1], lambda path: path.write_bytes(picture))
    return files
