"""A plan in words: what to rent, why it is enough and less is not, what binds, what would change it, what is open."""

import math
from collections import Counter
from collections.abc import Iterator

from simulator.planner import Candidate, Choice
from simulator.planner_options import Server
from simulator.planner_runs import Finding, FleetVerdict
from simulator.planner_study import FleetPlan, Relief, binding
from simulator.step_times import how_far_off, stand_ins
from simulator.summary_table import format_number, format_seconds, format_share, listed

__all__ = [
    "cannot_know",
    "dollars",
    "fate_in_words",
    "finding_in_words",
    "fleet_and_model",
    "fleet_in_short",
    "fleet_in_words",
    "sentences",
    "trade_in_words",
    "verdict_in_words",
]

_MONTH_HOURS = 730
_MOST_WALLS = 3
_MONOTONE = "A replica more is taken never to make a fleet worse, and GPUs to be had at the price, in nodes of eight."


def sentences(plan: FleetPlan) -> list[str]:
    """The whole story, a few sentences each; the first is the answer."""
    if plan.best is None:
        return list(_none_holds(plan))
    return [
        _answer(plan, plan.best),
        _why_it_holds(plan, plan.best),
        *_why_less_does_not(plan, plan.best),
        *_other_models(plan, plan.best),
        _what_binds(plan),
        _how_far(plan, plan.best),
        *_what_would_change(plan, plan.best),
        *_close_calls(plan, plan.best),
        *_spared(plan),
    ]


def dollars(amount: float) -> str:
    """$20.94, $1,234."""
    return f"${amount:,.2f}" if amount < 1000 else f"${amount:,.0f}"


def fleet_in_short(plan: FleetPlan, candidate: Candidate) -> str:
    """`3 × b200`, `2 × (4 × h200)`."""
    server = plan.servers[candidate.choice.name]
    replica = f"({server.tensor_parallel} × {server.gpu})" if server.tensor_parallel > 1 else server.gpu
    return f"{plan.search.bought(candidate):,} × {replica}"


def fleet_and_model(plan: FleetPlan, candidate: Candidate) -> str:
    """The same, with the model where there are several."""
    model = f"{plan.servers[candidate.choice.name].model}: " if len(plan.models) > 1 else ""
    return f"{model}{fleet_in_short(plan, candidate)}"


def fleet_in_words(plan: FleetPlan, candidate: Candidate) -> str:
    """`3 replicas of gemma-3-27b on 2 × h100-80gb`."""
    return f"{_replicas(plan.search.bought(candidate))} of {candidate.choice.name}"


def finding_in_words(finding: Finding) -> str:
    """`TTFT p99 1.05 s (95% interval 0.98 s to 1.12 s, limit 2 s)`; of what every run breaks, the least broken run."""
    interval = finding.interval
    form = format_share if finding.is_share else format_seconds
    spread = f"95% interval {form(max(0.0, interval.low))} to {form(interval.high)}, " if interval.half else ""
    if finding.is_always_broken and interval.half:
        nearest = f"{form(max(finding.values))} at most" if finding.is_share else f"{form(min(finding.values))} or more"
        spread = f"{nearest} in each run, "
    return f"{finding.name} {form(interval.mean)} ({spread}limit {form(finding.limit)})"


def verdict_in_words(verdict: FleetVerdict) -> str:
    """A few words for a table."""
    if verdict.holds:
        return "holds"
    if verdict.refusal is not None:
        return "cannot serve"
    if verdict.is_close:
        return "too close to call"
    broken = [finding.name for finding in verdict.broken]
    if verdict.is_growing:
        always = [finding.name for finding in verdict.broken if finding.is_always_broken]
        return ", ".join(["queue grows", *(f"breaks {name}" for name in always[:1])])
    return f"breaks {' and '.join(broken)}"


def fate_in_words(plan: FleetPlan, choice: Choice) -> str:
    """What became of a choice, in a line."""
    search = plan.search
    fate = search.fate(choice)
    if fate == "walled":
        return choice.wall or ""
    if fate in {"best", "holds"}:
        return f"holds with {_replicas(min(each.num_replicas for each in search.holding([choice])))}"
    at_least = _replicas(choice.least_replicas)
    if fate == "bounded":
        cost = dollars(search.dollars_per_hour(Candidate(choice, choice.least_replicas)))
        if choice.least_replicas > search.most_replicas(choice):
            return f"needs {at_least} at least ({choice.least_reason}), more than --max-gpus allows"
        why = f" ({choice.least_reason})" if choice.least_reason else ""
        return f"needs {at_least} at least{why}: {cost}, no less than the answer"
    failed = search.most_failing(choice)
    what = verdict_in_words(plan.verdict(Candidate(choice, failed)))
    return f"{_replicas(failed)}: {what}" + (", and more cost more than the answer" if fate == "beaten" else "")


def _replicas(number: int) -> str:
    return f"{number:,} replica{'s' * (number != 1)}"


# The answer.


def _answer(plan: FleetPlan, best: Candidate) -> str:
    search = plan.search
    cost, num_gpus = search.dollars_per_hour(best), search.num_gpus(best)
    spare = search.limits.spare
    beside = ""
    if spare:
        may = "one may" if spare == 1 else f"{spare:,} may"
        serve = f"{best.num_replicas:,} of them serve{'s' * (best.num_replicas == 1)} the traffic alone"
        beside = f" {serve}, so {may} fail."
    return (
        f"Rent {fleet_in_words(plan, best)}, {num_gpus:,} GPU{'s' * (num_gpus != 1)} in all: {dollars(cost)} an hour,"
        f" {dollars(cost * _MONTH_HOURS)} a month.{beside}"
    )


def _why_it_holds(plan: FleetPlan, best: Candidate) -> str:
    verdict = plan.verdict(best)
    measures = " and ".join(map(finding_in_words, verdict.findings))
    return f"It holds: {measures}, {_over_runs(plan, verdict)}."


def _over_runs(plan: FleetPlan, verdict: FleetVerdict) -> str:
    traffic, outcome = plan.evaluator.traffic, verdict.outcomes[0]
    number = outcome["requests"]["arrived"]
    if verdict.num_runs == 1:
        return f"in one run of {number:,} requests"
    runs = f"over {verdict.num_runs} runs of {number:,} requests each"
    return f"{runs}, {_first_in_words(traffic.warm_up)} of each left out" if traffic.warm_up else runs


def _first_in_words(share: float) -> str:
    """`the first fifth`, `the first 15%`."""
    named: dict[float, str] = {2: "half", 3: "third", 4: "quarter", 5: "fifth", 10: "tenth"}
    return f"the first {named.get(round(1 / share, 6), format_share(share))}"


def _why_less_does_not(plan: FleetPlan, best: Candidate) -> Iterator[str]:
    less, cheaper = plan.one_less, plan.nearest_cheaper
    if less is not None:
        yield f"One replica less does not hold: {_how_it_fails(plan, less)}."
    elif best.num_replicas > 1:
        choice = best.choice
        yield (
            f"One replica less cannot hold: {choice.least_reason or 'arithmetic'} asks for"
            f" {_replicas(choice.least_replicas)} at least, whatever the schedule."
        )
    if cheaper is not None and cheaper != less:
        cost = dollars(plan.search.dollars_per_hour(cheaper))
        yield (
            f"The nearest cheaper fleet that was simulated, {fleet_in_words(plan, cheaper)} for {cost} an hour, does"
            f" not hold: {_how_it_fails(plan, cheaper)}."
        )
    if cheaper is None and less is None:
        yield "Nothing cheaper is for rent within the limits."


def _other_models(plan: FleetPlan, best: Candidate) -> Iterator[str]:
    """What the best one's alternatives would cost."""
    search = plan.search
    for model, candidate in plan.best_of_others.items():
        if candidate is not None:
            cost = dollars(search.dollars_per_hour(candidate))
            more = _more_in_words(search.price(candidate), search.price(best))
            fleet = fleet_in_words(plan, candidate)
            yield f"Of {model}, the cheapest fleet that was found to hold is {fleet}: {cost} an hour, {more}."
        elif plan.is_ruled_out(model):
            yield f"Of {model}, no fleet of at most {search.limits.max_gpus:,} GPUs holds."
        else:
            yield f"Of {model}, no fleet holds that costs less than the answer; a dearer one that does was not found."


def _how_it_fails(plan: FleetPlan, candidate: Candidate) -> str:
    verdict = plan.verdict(candidate)
    if verdict.refusal is not None:
        return verdict.refusal
    broken = [each for each in verdict.broken if each.is_always_broken or not verdict.is_growing]
    words = " and ".join(map(finding_in_words, broken))
    if verdict.is_growing:
        growth = f"its queue grows by {format_share(verdict.growth.mean)} of the arrivals"
        if not plan.evaluator.traffic.is_steady:
            growth = f"{format_share(verdict.growth.mean)} of the requests are left behind at the end of the trace"
        return f"{growth}, {words}" if words else growth
    if verdict.is_close:
        return f"{words}, which is too close to call"
    return words


# What binds.


def _what_binds(plan: FleetPlan) -> str:
    at = f"At {format_number(plan.relief_rate_per_s)} requests/s, more than one of its replicas sustains,"
    what = binding(plan)
    if what is None:
        return f"{at} no single relief helps: what binds is not one thing alone."
    first = plan.helping[0]
    sentence = f"What binds is {what}. {at} {first.change} {_relief_in_words(first)}"
    others = [_short_relief(relief) for relief in plan.helping[1:]]
    if others:
        sentence += f"; {listed(others)}"
    idle = dict.fromkeys(relief.what for relief in plan.reliefs if not relief.helps)
    idle_only = [what for what in idle if what not in {relief.what for relief in plan.helping}]
    return sentence + (f". Loosening {listed(idle_only)} changes nothing." if idle_only else ".")


def _relief_in_words(relief: Relief) -> str:
    outcome = "is enough" if relief.suffices else "helps most, but is not enough alone"
    return f"{outcome}: the tightest measure is {relief.after:.2f} of its limit instead of {relief.before:.2f}"


def _short_relief(relief: Relief) -> str:
    return f"with {relief.change} it is {relief.after:.2f}"


def _how_far(plan: FleetPlan, best: Candidate) -> str:
    rate, part = plan.sustained[best.choice.name].per_s, plan.evaluator.traffic.rate_per_s / best.num_replicas
    if rate.mean <= 0:
        return "Alone, one replica sustains no rate that was tried."
    spread = f" (95% interval {format_number(max(0.0, rate.low))} to {format_number(rate.high)})" if rate.half else ""
    how = (
        "with Poisson arrivals of its own" if plan.evaluator.traffic.is_steady else "under the same traffic slowed down"
    )
    return (
        f"Alone, {how}, one replica sustains {format_number(rate.mean)} requests/s{spread}; each of this fleet's gets"
        f" {format_number(part)} from its router."
    )


# What would change the answer.


def _what_would_change(plan: FleetPlan, best: Candidate) -> Iterator[str]:
    cost = plan.search.dollars_per_hour(best)
    for candidate in plan.next_best[:1]:
        server = plan.servers[candidate.choice.name]
        even = cost / plan.search.num_gpus(candidate)
        if server.gpu == plan.servers[best.choice.name].gpu or even >= server.price.dollars_per_hour:
            continue  # one price moves both, or it costs the same already
        yield (
            f"The answer changes if {server.gpu} falls below {dollars(even)} an hour, from"
            f" {dollars(server.price.dollars_per_hour)}: then {fleet_in_words(plan, candidate)} cost less."
        )


def trade_in_words(plan: FleetPlan, candidate: Candidate) -> str:
    """What a next best fleet gives and takes, against the best."""
    assert plan.best is not None
    search = plan.search
    parts = [_more_in_words(search.price(candidate), search.price(plan.best))]
    gpus = search.num_gpus(candidate) - search.num_gpus(plan.best)
    if gpus:
        parts.append(f"{abs(gpus):,} GPU{'s' * (abs(gpus) != 1)} {'more' if gpus > 0 else 'fewer'}")
    ours = {finding.name: finding.interval.mean for finding in plan.verdict(plan.best).findings}
    for finding in plan.verdict(candidate).findings:
        before = ours.get(finding.name)
        if before:
            parts.append(f"{finding.name} {finding.interval.mean / before - 1:+.0%}".replace("-", "−"))
    tightest = plan.verdict(candidate).tightest
    if tightest is not None:
        parts.append(f"the tightest limit used to {tightest.ratio:.0%}")
    return ", ".join(parts)


def _more_in_words(dollars_per_hour: float, than: float) -> str:
    """`the same price`, `+50% price`."""
    if dollars_per_hour == than:
        return "the same price"
    return f"{dollars_per_hour / than - 1:+.0%} price" if than else "a price"


def _close_calls(plan: FleetPlan, best: Candidate) -> Iterator[str]:
    cheaper = [each for each in plan.search.verdicts if plan.search.price(each) < plan.search.price(best)]
    close = [each for each in cheaper if plan.verdict(each).is_close]
    if close:
        dearest = max(close, key=plan.search.rank)
        cost = dollars(plan.search.dollars_per_hour(dearest))
        yield (
            f"Too close to call, and taken as failing: {len(close):,} cheaper fleet{'s' * (len(close) != 1)}, such as"
            f" {fleet_in_words(plan, dearest)} for {cost}; more --seeds would tell."
        )


def _spared(plan: FleetPlan) -> Iterator[str]:
    walled = [choice for choice in plan.search.choices if choice.wall is not None]
    number = len(plan.search.choices)
    if walled:
        yield (
            f"Of {number:,} kinds of replica {len(walled):,} can never do, by arithmetic;"
            f" {len(plan.search.verdicts):,} fleets were simulated."
        )


def _none_holds(plan: FleetPlan) -> Iterator[str]:
    yield f"No fleet of at most {plan.search.limits.max_gpus:,} GPUs meets {plan.evaluator.slo.text}."
    walls = Counter(choice.wall_kind for choice in plan.search.choices if choice.wall is not None)
    number = len(plan.search.choices)
    for wall, count in walls.most_common(_MOST_WALLS):
        yield f"For {count:,} of {number:,} kinds of replica {wall}, whatever their number."
    miss = plan.nearest_miss
    if miss is not None:
        cost = dollars(plan.search.dollars_per_hour(miss))
        yield (f"The nearest miss is {fleet_in_words(plan, miss)} for {cost} an hour: {_how_it_fails(plan, miss)}.")
        return
    slow = [choice for choice in plan.search.choices if choice.wall_ratio < math.inf]
    if slow:
        choice = min(slow, key=lambda each: (each.wall_ratio, each.name))
        yield f"The nearest miss is {choice.name}: {choice.wall}."


# What it cannot know.


def cannot_know(plan: FleetPlan) -> list[str]:
    """What no run of this plan can say."""
    traffic = plan.evaluator.traffic
    if traffic.is_steady:
        assumed = (
            "The traffic is made up: Poisson arrivals at one rate, all requests of one length. Real traffic comes in"
            " bursts and has long requests; plan with a trace of yours before you buy."
        )
    elif traffic.settings.get("trace") is None:
        assumed = (
            "The traffic is the embedded conversation workload, which is made up: plan with a trace of yours before you"
            " buy."
        )
    else:
        assumed = "The fleet is planned for this trace: for traffic like it, at its rate, and for no growth."
    chosen = dict.fromkeys(server.settings.get("step_times", "roofline") for server in plan.servers.values())
    instead = stand_ins(
        source
        for verdict in plan.search.verdicts.values()
        for outcome in getattr(verdict, "outcomes", ())
        for source in outcome.get("step_times", ())
    )
    return [how_far_off(chosen) + instead, assumed, _prices_in_words(plan), _MONOTONE]


def _prices_in_words(plan: FleetPlan) -> str:
    servers: dict[str, Server] = {server.gpu: server for server in plan.servers.values()}
    dates = sorted({server.price.date for server in servers.values() if server.price.date is not None})
    if not dates:
        return "Prices are those that were stated; machines around the GPUs, network and storage are not in them."
    span = str(dates[0]) if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    stated = "" if all(server.price.date is not None for server in servers.values()) else ", others were stated"
    return f"Prices are on-demand list prices of {span}{stated}; they move, and reserved ones are lower."
