"""MLPs: dense, or a choice of experts."""

from dataclasses import dataclass

from kvcache.specs import cdiv
from models_configs.parts import Routing
from models_configs.quantization import StoredWeights, WeightFormat, Weights

__all__ = ["DenseMLP", "MixtureOfExperts"]


def _round_up(value: int, multiple: int) -> int:
    return cdiv(value, multiple) * multiple


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseMLP:
    """Up and (in a gated one) gate projections, then down."""

    hidden_size: int
    intermediate_size: int
    is_gated: bool = True
    num_bias_parameters: int = 0
    weight_format: WeightFormat | None = None
    """None for unquantized."""

    def _width(self, tensor_parallel: int) -> int:
        return cdiv(self.intermediate_size, tensor_parallel)

    def _weights(self, tensor_parallel: int) -> Weights:
        matrices = (2 + self.is_gated) * self.hidden_size * self._width(tensor_parallel)
        return Weights(matrices, cdiv(self.num_bias_parameters, tensor_parallel))

    def num_parameters(self, tensor_parallel: int = 1) -> int:
        """Two or three matrices, and biases."""
        return self._weights(tensor_parallel).total

    def weight_bytes(self, element_bytes: int, tensor_parallel: int = 1) -> int:
        """Bytes of them as published."""
        return self._weights(tensor_parallel).num_bytes(element_bytes, self.weight_format)

    def shared_weights(self, element_bytes: int, tensor_parallel: int = 1) -> tuple[StoredWeights, ...]:
        """All of them."""
        return self._weights(tensor_parallel).stored(element_bytes, self.weight_format)

    def kernel_padding_bytes(self, tensor_parallel: int = 1) -> int:
        """None."""
        return 0

    def routing(self, element_bytes: int, tensor_parallel: int = 1) -> Routing | None:
        """None: every token passes all of it."""
        return None

    def activation_elements(self, tensor_parallel: int = 1) -> int:
        """Up, gate and their product."""
        return (2 + self.is_gated) * self._width(tensor_parallel)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureOfExperts:
    """A router that sends each token to `top_k` of `num_experts` MLPs, and perhaps one that all pass.

    Tensor parallelism cuts each expert into slices; the router is on every rank.
    """

    hidden_size: int
    expert_size: int
    """Intermediate size of one expert."""
    num_experts: int
    top_k: int
    shared_expert_size: int = 0
    """Intermediate size of the expert (or of all together) that every token passes; 0 for none."""
    is_gated: bool = True
    expert_hidden_size: int | None = None
    """Width that the routed experts read and write, where tokens are projected to it and back."""
    has_bias: bool = False
    """On the router and on each expert's projections."""
    num_router_extras: int = 0
    """Weights beside the router's matrix: corrections of its scores, the gate of a shared expert."""
    expert_format: WeightFormat | None = None
    """Of the routed experts' matrices; None for unquantized."""
    shared_format: WeightFormat | None = None
    """Of the shared expert's."""

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.num_experts:
            raise ValueError(f"top_k must be between 1 and {self.num_experts} experts, got {self.top_k}")

    @property
    def _num_matrices(self) -> int:
        return 2 + self.is_gated

    @property
    def _expert_hidden_size(self) -> int:
        return self.hidden_size if self.expert_hidden_size is None else self.expert_hidden_size

    def _expert(self, tensor_parallel: int) -> Weights:
        width = cdiv(self.expert_size, tensor_parallel)
        hidden_size = self._expert_hidden_size
        biases = (self._num_matrices - 1) * width + hidden_size if self.has_bias else 0
        return Weights(self._num_matrices * hidden_size * width, biases)

    def _shared_by_all(self, tensor_parallel: int) -> Weights:
        """Router, projections to the experts' width and back, shared expert."""
        router = (self.hidden_size + self.has_bias) * self.num_experts + self.num_router_extras
        if self.expert_hidden_size is not None:
            router += 2 * self.hidden_size * self.expert_hidden_size
        return Weights(self._num_matrices * self.hidden_size * cdiv(self.shared_expert_size, tensor_parallel), router)

    def num_parameters(self, tensor_parallel: int = 1) -> int:
        """Router, shared expert, routed experts."""
        return self._shared_by_all(tensor_parallel).total + self.num_experts * self._expert(tensor_parallel).total

    def weight_bytes(self, element_bytes: int, tensor_parallel: int = 1) -> int:
        """Bytes of all as published."""
        shared = self._shared_by_all(tensor_parallel).num_bytes(element_bytes, self.shared_format)
        return shared + self.num_experts * self.routing(element_bytes, tensor_parallel).expert_bytes

    def shared_weights(self, element_bytes: int, tensor_parallel: int = 1) -> tuple[StoredWeights, ...]:
        """Router, projections to the experts' width and back, shared expert."""
        return self._shared_by_all(tensor_parallel).stored(element_bytes, self.shared_format)

    def kernel_padding_bytes(self, tensor_parallel: int = 1) -> int:
        """What rounding the two sizes of each expert up adds."""
        if self.expert_format is None:
            return 0
        padded = self._num_matrices * (
            _round_up(self._expert_hidden_size, self.expert_format.hidden_multiple)
            * _round_up(cdiv(self.expert_size, tensor_parallel), self.expert_format.intermediate_multiple)
        )
        extra = self.expert_format.num_bytes(padded - self._expert(tensor_parallel).matrices)
        return self.num_experts * extra

    def routing(self, element_bytes: int, tensor_parallel: int = 1) -> Routing:
        """The routed experts."""
        expert = self._expert(tensor_parallel)
        return Routing(
            num_experts=self.num_experts,
            top_k=self.top_k,
            expert_parameters=expert.total,
            expert_bytes=expert.num_bytes(element_bytes, self.expert_format),
            weight_format=self.expert_format,
        )

    def activation_elements(self, tensor_parallel: int = 1) -> int:
        """What each of a token's experts reads and writes.

        As in vLLM 0.32 (fused_moe/experts/triton_moe.py, `workspace_shapes`).
        """
        width, hidden_size = cdiv(self.expert_size, tensor_parallel), self._expert_hidden_size
        return self.top_k * (max(width, hidden_size) + max(2 * width, hidden_size))
