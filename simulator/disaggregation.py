"""Prompts are computed on some replicas, outputs generated on others: `simulate_disaggregated(prefill, decode, link)`.

```
arrivals ──► prefill fleet ──► prompt done: its blocks are lent ──► decode fleet ──► outputs
                    ▲                                                    │ blocks taken
                    └── read: blocks free ◄── network ◄──────────────────┘
```

As vLLM's NIXL connector and its proxies do it: a request runs at a prefill replica with one output token, which
nobody sees; then it is sent to a decode replica, which takes blocks for it, pulls their contents, computes the
prompt's last token again and generates all tokens that the user gets.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import simpy

from kvcache.errors import InvariantError
from kvcache.manager import KVCacheManager
from kvcache.managers import Load as BlocksToFill
from simulator.arrival import Arrival
from simulator.closed_loop_options import traffic_of
from simulator.deployment import Deployment, deploy_all
from simulator.disaggregated_result import DisaggregatedRows, combine_disaggregated
from simulator.disaggregation_checks import check_disaggregation
from simulator.fleet import Fleet, begin, sessions_of
from simulator.fleet_replica import Replica
from simulator.fleet_result import FleetResult
from simulator.hand_over import HandOver, bytes_to_fill, recomputed_tokens
from simulator.link import Link, Network, Port
from simulator.load import Load
from simulator.loading import NOTHING, LendingScheduler, Offer
from simulator.operations import QUIET
from simulator.request import Request
from simulator.router import Router, router_name
from simulator.scenario import Scenario, ScenarioError
from simulator.scheduler import Scheduler
from simulator.session_measures import with_sessions
from workloads import SessionTrace, Trace

__all__ = ["DecodeReplica", "Disaggregation", "PrefillReplica", "Servers", "simulate_disaggregated"]


@dataclass(frozen=True, slots=True)
class Servers:
    """Replicas with one task, and the router before them."""

    scenarios: Sequence[Scenario]
    router: Router
    staleness_s: float = 0.0
    """How old the router's knowledge of what replicas hold may be."""


def simulate_disaggregated(
    prefill: Servers,
    decode: Servers,
    link: Link,
    *,
    trace: Trace | SessionTrace | None = None,
    on_progress: Callable[[float, int], None] | None = None,
) -> FleetResult:
    """Replay a workload on prefill and decode replicas; the first prefill scenario says what the workload is.

    `trace` replaces it. `on_progress(now_s, num_ended)` is called now and then.
    Raises ValueError with one line for a person where a scenario or the trace is wrong.
    """
    if not prefill.scenarios or not decode.scenarios:
        raise ValueError("a disaggregated fleet needs a prefill replica and a decode replica at least")
    traffic = traffic_of(prefill.scenarios[0], trace)
    num_prefill = len(prefill.scenarios)
    servers = deploy_all([*prefill.scenarios, *decode.scenarios])
    deployed = servers[:num_prefill], servers[num_prefill:]
    _check_alike(*deployed)
    env = simpy.Environment()
    world = Disaggregation(env, (prefill, decode), deployed, link, on_progress)
    runs = begin(env, traffic, world.submit, lambda: None)
    env.run()
    results = [replica.result() for replica in world.replicas]
    check_disaggregation(world, results)
    said = {
        "num_replicas": len(world.replicas),
        "prefill_replicas": len(prefill.scenarios),
        "decode_replicas": len(decode.scenarios),
        "prefill_router": router_name(prefill.router),
        "decode_router": router_name(decode.router),
        "router_staleness_s": prefill.staleness_s,
        "link_bytes_per_s": link.bandwidth_bytes_per_s,
        "link_latency_s": link.latency_s,
    }
    return with_sessions(combine_disaggregated(world, results, said), sessions_of(runs, world.load.num))


def _check_alike(prefill: Sequence[Deployment], decode: Sequence[Deployment]) -> None:
    """Blocks are copied as they are, so every replica has to keep them alike."""
    first, *others = [*prefill, *decode]
    kept = _kept(first)
    for other in others:
        if other.model != first.model:
            raise ScenarioError(
                f"prefill and decode replicas must serve one model, got {first.model.name} and {other.model.name}"
            )
        if _kept(other) != kept:
            raise ScenarioError(
                "prefill and decode replicas must keep blocks alike (--block-size, --kv-cache-dtype, ...):"
                f" {_in_words(first)} and {_in_words(other)} differ"
            )


def _kept(deployment: Deployment) -> dict[int, tuple[str, int, str]]:
    """By layer: kind, block size and data type."""
    dtype = deployment.scenario.kv_cache_dtype
    return {
        layer: (group.spec.kind, group.spec.block_size, dtype)
        for group in deployment.layout.groups
        for layer in group.layers
    }


def _in_words(deployment: Deployment) -> str:
    sizes = sorted({group.spec.block_size for group in deployment.layout.groups})
    return f"blocks of {' and '.join(map(str, sizes))} tokens in {deployment.scenario.kv_cache_dtype}"


class Disaggregation:
    """Two fleets, the network between them, and every request's way from one to the other."""

    def __init__(
        self,
        env: simpy.Environment,
        servers: tuple[Servers, Servers],
        deployed: Sequence[Sequence[Deployment]],
        link: Link,
        on_progress: Callable[[float, int], None] | None = None,
    ) -> None:
        """`servers` and `deployed` are those for prompts, then those for outputs."""
        (prefill, decode), (prefill_deployed, decode_deployed) = servers, deployed
        self._env = env
        self._on_progress = on_progress
        self.network = Network(env, link)
        self.prefill_replicas: list[PrefillReplica] = []
        self.decode_replicas: list[DecodeReplica] = []
        self.prefill = _TaskFleet(self, PrefillReplica, env, prefill_deployed, prefill)
        self.decode = _TaskFleet(self, DecodeReplica, env, decode_deployed, decode)
        self.recomputed_tokens = recomputed_tokens(decode_deployed[0].layout.groups)
        self.rows = DisaggregatedRows()
        """A row for each request that has ended."""
        self.load = Load()
        """Requests that have arrived and not ended."""
        self.num_arrived = 0
        self.rejected_after_s = 0.0
        """How long those were there who were turned away, in all."""
        self.under_way: dict[int, HandOver] = {}
        """Requests that have arrived and not ended, by their serial."""
        self.operations = QUIET

    @property
    def replicas(self) -> list[Replica]:
        """Those for prompts, then those for outputs: their numbers in the tables."""
        return [*self.prefill_replicas, *self.decode_replicas]

    def submit(self, arrival: Arrival) -> None:
        """A request arrives now."""
        self.num_arrived += 1
        self.load.change(1, self._env.now)
        self.under_way[arrival.serial] = HandOver(arrival)
        prompt_tokens = max(1, arrival.row.prompt_tokens - self.recomputed_tokens)
        self.prefill.submit(arrival.changed(prompt_tokens=prompt_tokens, output_tokens=1))

    # What a prefill replica tells.

    def prompt_left(self, serial: int, request: Request, replica: "PrefillReplica") -> None:
        """A prompt has been computed, or its request was rejected."""
        hand_over = self.under_way[serial]
        hand_over.prefill, hand_over.prefill_request = replica, request
        if request.finish_s is None:
            self._end(hand_over, "rejected")
            return
        if request in replica.scheduler.held:  # preempted while its token was on its way, it has nothing to lend
            hand_over.is_lent = True
        self.decode.submit(hand_over.arrival.changed(arrival_s=self._env.now))

    # What a decode replica asks and tells.

    def offer(self, serial: int, hit_tokens: int) -> Offer:
        """What the prefill replica has of a request, once; cached beginnings do not travel."""
        hand_over = self.under_way[serial]
        if not hand_over.is_lent or hand_over.transfer is not None:
            return NOTHING
        return Offer(hand_over.arrival.row.prompt_tokens - self.recomputed_tokens, hit_tokens)

    def start(self, serial: int, request: Request, loads: list[BlocksToFill], replica: "DecodeReplica") -> None:
        """A decode replica has taken blocks for a request: send their contents."""
        hand_over = self.under_way[serial]
        if not loads:
            self._take_back(hand_over)
            return
        if hand_over.prefill is None or not hand_over.is_lent:
            raise InvariantError(f"lent-until-read: request {request.request_id!r} is to be read and is not there")
        manager, num_ranks = replica.scheduler.manager, replica.deployment.scenario.tensor_parallel_size
        num_bytes, hand_over.padding_bytes = bytes_to_fill(manager, loads, num_ranks)

        def arrived() -> None:
            self._take_back(hand_over)
            replica.loaded(request)

        hand_over.transfer = self.network.send(num_bytes, hand_over.prefill.sends, replica.receives, arrived)

    def output_left(self, serial: int, request: Request, replica: "DecodeReplica") -> None:
        """A request's tokens have all been generated, or it was rejected."""
        hand_over = self.under_way[serial]
        hand_over.decode, hand_over.decode_request = replica, request
        self._take_back(hand_over)  # rejected before it could read them
        self._end(hand_over, "rejected" if request.finish_s is None else "finished")

    def _take_back(self, hand_over: HandOver) -> None:
        """Nobody will read the blocks that a prefill replica holds for this request, or nobody will any more."""
        if hand_over.is_lent and hand_over.prefill is not None and hand_over.prefill_request is not None:
            hand_over.is_lent = False
            hand_over.prefill.loaded(hand_over.prefill_request)

    def _end(self, hand_over: HandOver, status: str) -> None:
        now_s, arrival = self._env.now, hand_over.arrival
        del self.under_way[arrival.serial]
        arrival.on_left()
        self.load.change(-1, now_s)
        if status == "rejected":
            self.rejected_after_s += now_s - arrival.row.arrival_s
        self.rows.append(hand_over, status)
        if self._on_progress is not None:
            self._on_progress(now_s, self.num_arrived - self.load.num)


class _TaskFleet(Fleet):
    """Replicas with one of the two tasks."""

    def __init__(
        self,
        world: Disaggregation,
        kind: "type[TaskReplica]",
        env: simpy.Environment,
        deployed: Sequence[Deployment],
        servers: Servers,
    ) -> None:
        self._world = world
        self._kind = kind
        super().__init__(env, deployed, servers.router, servers.staleness_s)

    def _new_replica(self, deployment: Deployment) -> Replica:
        return self._kind(self._world, self._env, len(self.replicas), deployment, self, self._staleness_s)


class TaskReplica(Replica):
    """What both kinds share: they tell of each request that has left, and hear when blocks have been copied."""

    def __init__(self, world: Disaggregation, *of_replica: Any) -> None:
        self._world = world
        super().__init__(*of_replica)
        self.number = len(world.replicas)
        """Among all replicas."""

    def loaded(self, request: Request) -> None:
        """The contents of its blocks have arrived where they are needed."""
        self._inbox.loaded(request)

    def _leave(self, requests: list[Request]) -> None:
        serials = [self._arrivals[request].serial for request in requests]
        super()._leave(requests)
        for serial, request in zip(serials, requests, strict=True):
            self._left(serial, request)

    @abstractmethod
    def _left(self, serial: int, request: Request) -> None:
        """A request has ended here."""


class PrefillReplica(TaskReplica):
    """A replica that computes prompts and lends their blocks."""

    def __init__(self, world: Disaggregation, *of_replica: Any) -> None:
        super().__init__(world, *of_replica)
        world.prefill_replicas.append(self)
        self.sends = Port()

    def _new_scheduler(self) -> tuple[Scheduler, None]:
        scheduler = LendingScheduler(
            KVCacheManager(self.deployment.layout, self.deployment.cache_settings),
            self.deployment.scheduler_settings,
            self.deployment.model.reaches,
        )
        return scheduler, None

    def _left(self, serial: int, request: Request) -> None:
        self._world.prompt_left(serial, request, self)


class DecodeReplica(TaskReplica):
    """A replica that generates tokens after prompts which were computed elsewhere: the source of its blocks' contents.

    It is a `KVSource`.
    """

    def __init__(self, world: Disaggregation, *of_replica: Any) -> None:
        super().__init__(world, *of_replica)
        world.decode_replicas.append(self)
        self.receives = Port()

    def _new_scheduler(self) -> tuple[Scheduler, None]:
        return self.deployment.new_scheduler(source=self), None

    def offer(self, request: Request, hit_tokens: int) -> Offer:
        """What the prefill replica has of a waiting request."""
        return self._world.offer(self._arrivals[request].serial, hit_tokens)

    def start(self, request: Request, loads: list[BlocksToFill]) -> None:
        """The request has its blocks: have their contents sent."""
        self._world.start(self._arrivals[request].serial, request, loads, self)

    def _left(self, serial: int, request: Request) -> None:
        self._world.output_left(serial, request, self)
