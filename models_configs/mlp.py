"""MLPs: dense, or a choice of experts; and the formats in which their weights are stored."""

from dataclasses import dataclass

from kvcache.specs import cdiv
from models_configs.parts import Routing

__all__ = ["MXFP4", "DenseMLP", "MixtureOfExperts", "WeightFormat"]


def _round_up(value: int, multiple: int) -> int:
    return cdiv(value, multiple) * multiple


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """Quantized weights: so many bits per element, and a scale for each group of elements."""

    name: str
    element_bits: int
    scale_bits: int
    scale_group: int
    """Elements that share a scale."""
    hidden_multiple: int = 1
    """To which a server's kernels round the hidden size up when they load the weights."""
    intermediate_multiple: int = 1
    """To which they round the width of an expert up."""

    def num_bytes(self, num_elements: int) -> int:
        """Bytes of `num_elements`, scales included."""
        return cdiv(num_elements * (self.element_bits * self.scale_group + self.scale_bits), 8 * self.scale_group)


# OCP Microscaling formats 1.0: 4 bits, and an 8-bit scale for each 32 elements. The multiples are those
# of the Marlin and TensorRT-LLM kernels (vLLM 0.32, fused_moe/oracle/mxfp4.py). With them gpt-oss-20b
# takes 13.67 GiB and gpt-oss-120b 65.9; servers have printed 13.72 (A100), 13.47 (H100) and 65.97, 64.38.
MXFP4 = WeightFormat(
    name="mxfp4", element_bits=4, scale_bits=8, scale_group=32, hidden_multiple=256, intermediate_multiple=128
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseMLP:
    """A gated MLP: up and gate projections, then down."""

    hidden_size: int
    intermediate_size: int

    def num_parameters(self, tensor_parallel: int = 1) -> int:
        """Three matrices."""
        return 3 * self.hidden_size * cdiv(self.intermediate_size, tensor_parallel)

    def weight_bytes(self, element_bytes: int, tensor_parallel: int = 1) -> int:
        """All of them unquantized."""
        return self.num_parameters(tensor_parallel) * element_bytes

    def kernel_padding_bytes(self, tensor_parallel: int = 1) -> int:
        """None."""
        return 0

    def routing(self, element_bytes: int, tensor_parallel: int = 1) -> Routing | None:
        """None: every token passes all of it."""
        return None

    def activation_elements(self, tensor_parallel: int = 1) -> int:
        """Up, gate and their product."""
        return 3 * cdiv(self.intermediate_size, tensor_parallel)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureOfExperts:
    """A router that sends each token to `top_k` of `num_experts` gated MLPs, and perhaps one that all pass.

    Tensor parallelism cuts each expert into slices; the router is on every rank.
    """

    hidden_size: int
    expert_size: int
    """Intermediate size of one expert."""
    num_experts: int
    top_k: int
    shared_expert_size: int = 0
    """Intermediate size of the expert that every token passes; 0 for none."""
    has_bias: bool = False
    """On the router and on each expert's projections."""
    expert_format: WeightFormat | None = None
    """Of the experts' matrices; None for unquantized."""

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.num_experts:
            raise ValueError(f"top_k must be between 1 and {self.num_experts} experts, got {self.top_k}")

    def _expert_matrices(self, tensor_parallel: int) -> int:
        return 3 * self.hidden_size * cdiv(self.expert_size, tensor_parallel)

    def _expert_biases(self, tensor_parallel: int) -> int:
        return 2 * cdiv(self.expert_size, tensor_parallel) + self.hidden_size if self.has_bias else 0

    def _shared_by_all(self, tensor_parallel: int) -> int:
        router = (self.hidden_size + self.has_bias) * self.num_experts
        return router + 3 * self.hidden_size * cdiv(self.shared_expert_size, tensor_parallel)

    def num_parameters(self, tensor_parallel: int = 1) -> int:
        """Router, shared expert, routed experts."""
        expert = self._expert_matrices(tensor_parallel) + self._expert_biases(tensor_parallel)
        return self._shared_by_all(tensor_parallel) + self.num_experts * expert

    def weight_bytes(self, element_bytes: int, tensor_parallel: int = 1) -> int:
        """The experts' matrices in their format, all else unquantized."""
        routing = self.routing(element_bytes, tensor_parallel)
        return self._shared_by_all(tensor_parallel) * element_bytes + self.num_experts * routing.expert_bytes

    def kernel_padding_bytes(self, tensor_parallel: int = 1) -> int:
        """What rounding the two sizes of each expert up adds."""
        if self.expert_format is None:
            return 0
        padded = 3 * (
            _round_up(self.hidden_size, self.expert_format.hidden_multiple)
            * _round_up(cdiv(self.expert_size, tensor_parallel), self.expert_format.intermediate_multiple)
        )
        extra = self.expert_format.num_bytes(padded - self._expert_matrices(tensor_parallel))
        return self.num_experts * extra

    def routing(self, element_bytes: int, tensor_parallel: int = 1) -> Routing:
        """The routed experts."""
        matrices, biases = self._expert_matrices(tensor_parallel), self._expert_biases(tensor_parallel)
        matrix_bytes = (
            matrices * element_bytes if self.expert_format is None else self.expert_format.num_bytes(matrices)
        )
        return Routing(
            num_experts=self.num_experts,
            top_k=self.top_k,
            expert_parameters=matrices + biases,
            expert_bytes=matrix_bytes + biases * element_bytes,
        )

    def activation_elements(self, tensor_parallel: int = 1) -> int:
        """Two buffers that hold, for each choice of a token, an expert's widest input and widest output.

        As in vLLM 0.32 (fused_moe/experts/triton_moe.py, `workspace_shapes`).
        """
        width = cdiv(self.expert_size, tensor_parallel)
        return self.top_k * (max(width, self.hidden_size) + max(2 * width, self.hidden_size))
