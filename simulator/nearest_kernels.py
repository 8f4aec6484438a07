"""Which measured kernels stand for a model: its own, or those of the nearest by shape, times the ratio of rooflines."""

from collections.abc import Callable
from functools import cache
from math import log

from models_configs import Model, UnknownModelError, find_model
from simulator.batch import Batch
from simulator.efficiencies import Efficiencies
from simulator.hardware import Gpu
from simulator.kernel_step_times import KernelStepTimes
from simulator.kernel_tables import Curve, Kernels, Surface
from simulator.latency import StepTimes
from simulator.roofline import ROOFLINE, Roofline
from simulator.silicon import KNOWN_MODELS, NoKernelsError, has_tables, measured_kernels

__all__ = ["silicon_step_times"]

MOST_TRIES = 4
"""Near models of which the tables may lack something before the roofline is taken."""
ATTENTION = ("prefill_attention_compute", "decode_attention_compute", "kv_bandwidth")
"""Parts of a roofline that depend on contexts."""
HOST = ("step_s", "request_s")
"""Parts that are no kernels."""


def silicon_step_times(
    model: Model,
    gpu: Gpu,
    tensor_parallel: int,
    kv_cache_dtype: str,
    efficiencies: Efficiencies,
    *,
    expert_parallel: bool,
) -> StepTimes:
    """Step times from measured kernels as far as there are some; `source` says which."""
    server = (gpu, tensor_parallel, kv_cache_dtype)
    if not has_tables(gpu):
        return Roofline(model, *server, efficiencies, f"{ROOFLINE}: there are no measured kernels on {gpu.name}")
    peaks = Roofline(model, *server, Efficiencies.at_peak())
    missing = f"there are no measured kernels of {model.name}"
    for known_as in _names_of(model):
        try:
            kernels = measured_kernels(model, known_as, *server, expert_parallel=expert_parallel)
        except NoKernelsError as error:
            missing = f"those of {error}"
            continue
        return KernelStepTimes(kernels, peaks, efficiencies, f"measured kernels of {known_as} on {gpu.name}")
    ours = _Parts(model, Roofline(model, *server, efficiencies))
    for near, known_as in _nearest(model, tensor_parallel):
        try:
            kernels = measured_kernels(near, known_as, *server, expert_parallel=expert_parallel)
        except NoKernelsError:
            continue
        scaled = _scaled(kernels, ours, _Parts(near, Roofline(near, *server, efficiencies)))
        source = f"measured kernels of {known_as} on {gpu.name}, times the ratio of rooflines: {missing}"
        return KernelStepTimes(scaled, peaks, efficiencies, source)
    return Roofline(model, *server, efficiencies, f"{ROOFLINE}: {missing}")


def _names_of(model: Model) -> list[str]:
    """Under which the tables know a model of this shape, however it stores its weights: its own name first."""
    alike = [
        (known.name != model.name, known_as)
        for known_as in KNOWN_MODELS
        if (known := _known(known_as)) and _shape(known) == _shape(model)
    ]
    return [known_as for _, known_as in sorted(alike)]


def _shape(model: Model) -> tuple[object, ...]:
    sizes = (model.num_parameters, model.num_active_parameters, len(model.layers), model.hidden_size, model.vocab_size)
    return *sizes, tuple(model.mixing_costs(model.kv_cache_options()))


@cache
def _known(known_as: str) -> Model | None:
    try:
        return find_model(known_as)
    except UnknownModelError:
        return None


def _nearest(model: Model, tensor_parallel: int) -> list[tuple[Model, str]]:
    """Models of the tables that are of the same kind, the nearest first: some."""
    known = {found.name: (found, name) for name in sorted(KNOWN_MODELS) if (found := _known(name)) is not None}
    alike = [
        (found, name)
        for found, name in known.values()
        if _kind(found) == _kind(model) and found.can_split(tensor_parallel) and _shape(found) != _shape(model)
    ]
    return sorted(alike, key=lambda entry: _distance(entry[0], model))[:MOST_TRIES]


def _kind(model: Model) -> tuple[bool, bool]:
    """Whether it has routed experts, and whether some layers keep states."""
    options = model.kv_cache_options()
    return model.has_experts, any(cost.bytes_per_request for cost in model.mixing_costs(options))


def _distance(one: Model, other: Model) -> float:
    """How far apart two shapes are: in arithmetic for each token, layers and width, as logarithms of factors."""
    shapes = ((model.num_active_parameters, len(model.layers), model.hidden_size) for model in (one, other))
    return sum(abs(log(mine / theirs)) for mine, theirs in zip(*shapes, strict=True))


class _Parts:
    """A roofline's seconds of attention, and of all else that is not fixed, for batches of one shape."""

    def __init__(self, model: Model, roofline: Roofline) -> None:
        self._model = model
        self._roofline = roofline

    def decode_s(self, num_requests: int) -> float:
        return self._seconds(self._decodes(num_requests, 0), of_attention=False)

    def decode_attention_s(self, num_requests: int, num_seen: int) -> float:
        return self._seconds(self._decodes(num_requests, num_seen), of_attention=True)

    def prefill_s(self, num_tokens: int) -> float:
        return self._seconds(Batch(((num_tokens, 0),), 0, 0), of_attention=False)

    def prefill_attention_s(self, num_new: int, num_computed: int) -> float:
        return self._seconds(Batch(((num_new, num_computed),), 0, 0), of_attention=True)

    def logits_s(self, num_requests: int) -> float:
        return float(self._model.embedding_parameters())

    def _decodes(self, num_requests: int, num_seen: int) -> Batch:
        seen = tuple(num_requests * reach.seen_before(num_seen) for reach in self._model.reaches)
        return Batch((), num_requests, num_requests * num_seen, seen, (0,) * len(seen))

    def _seconds(self, batch: Batch, *, of_attention: bool) -> float:
        parts_s = self._roofline.parts_s(batch)
        return sum(
            seconds for name, seconds in parts_s.items() if name not in HOST and (name in ATTENTION) == of_attention
        )


def _scaled(kernels: Kernels, ours: _Parts, theirs: _Parts) -> Kernels:
    def curve(of: Curve, part: Callable[[_Parts, int], float]) -> Curve:
        return Curve(lambda size: of.at(size) * part(ours, max(size, 1)) / part(theirs, max(size, 1)))

    def surface(of: Callable[[int, int], float], part: Callable[[_Parts, int, int], float]) -> Surface:
        return Surface(
            lambda num, size: of(num, size) * part(ours, max(num, 1), size) / part(theirs, max(num, 1), size)
        )

    def all_attention_s(num_requests: int, num_seen: int) -> float:
        return sum(table.along(num_requests).at(num_seen) for _, table in kernels.decode_attention)

    return Kernels(
        decode=curve(kernels.decode, _Parts.decode_s),
        prefill=curve(kernels.prefill, _Parts.prefill_s),
        logits=curve(kernels.logits, _Parts.logits_s),
        prefill_attention=surface(
            lambda new, before: kernels.prefill_attention.along(new).at(before), _Parts.prefill_attention_s
        ),
        decode_attention=((None, surface(all_attention_s, _Parts.decode_attention_s)),),
    )
