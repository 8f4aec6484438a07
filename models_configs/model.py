"""One frozen description of a model: what each layer keeps, weighs and computes."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any

from kvcache.specs import DTYPE_BYTES, KVCacheSpec, cdiv
from models_configs.parts import AttentionPart, KVCacheOptions, MixingCost, MLPPart, Routing
from models_configs.quantization import StoredWeights
from models_configs.reach import Everything, Reach

__all__ = ["Layer", "Model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Parts that mix tokens and MLPs, with the norms around them.

    One of each as a rule; some layers have two side by side (Falcon-H1, Gemma-4), and where each part is
    a layer of its own (Nemotron-H) only one.
    """

    mixers: tuple[AttentionPart, ...]
    mlps: tuple[MLPPart, ...]
    norm_parameters: int
    """Weights of the layer's norms over the hidden size, and others of no part; every rank holds them."""

    @property
    def parts(self) -> tuple[AttentionPart | MLPPart, ...]:
        """All of them."""
        return (*self.mixers, *self.mlps)

    def num_parameters(self, tensor_parallel: int = 1) -> int:
        """Weights on one rank."""
        return self.norm_parameters + sum(part.num_parameters(tensor_parallel) for part in self.parts)

    def routings(self, element_bytes: int, tensor_parallel: int = 1) -> list[Routing]:
        """The routed experts of each MLP that has some."""
        routings = (mlp.routing(element_bytes, tensor_parallel) for mlp in self.mlps)
        return [routing for routing in routings if routing is not None]

    def num_shared_parameters(self, tensor_parallel: int = 1) -> int:
        """Weights on one rank that every token passes: all but the routed experts."""
        routings = self.routings(1, tensor_parallel)
        routed = sum(routing.num_experts * routing.expert_parameters for routing in routings)
        return self.num_parameters(tensor_parallel) - routed

    def num_active_parameters(self, tensor_parallel: int = 1) -> int:
        """Weights on one rank that one token passes: with routed experts, those of its choice."""
        routings = self.routings(1, tensor_parallel)
        routed = sum(routing.top_k * routing.expert_parameters for routing in routings)
        return self.num_shared_parameters(tensor_parallel) + routed

    def linear_flops_per_token(self, tensor_parallel: int = 1) -> int:
        """A multiplication and an addition for each weight that a token passes, on one rank."""
        return 2 * self.num_active_parameters(tensor_parallel)

    def weight_bytes(self, element_bytes: int, tensor_parallel: int = 1) -> int:
        """Bytes of the weights on one rank, where unquantized ones take `element_bytes` each."""
        norm_bytes = self.norm_parameters * element_bytes
        return norm_bytes + sum(part.weight_bytes(element_bytes, tensor_parallel) for part in self.parts)

    def shared_weights(self, element_bytes: int, tensor_parallel: int = 1) -> tuple[StoredWeights, ...]:
        """The weights on one rank that every token passes, by format: all but the routed experts."""
        norms = StoredWeights(None, self.norm_parameters, self.norm_parameters * element_bytes)
        parts = (part.shared_weights(element_bytes, tensor_parallel) for part in self.parts)
        return StoredWeights.by_format((norms, *chain.from_iterable(parts)))


@dataclass(frozen=True, kw_only=True)
class Model:
    """A language model as it is served; of a multimodal one the text model alone."""

    name: str
    """Short and in lower case: how the catalogue and the command line know it."""
    hf_id: str
    """Repository on Hugging Face."""
    layers: tuple[Layer, ...]
    hidden_size: int
    vocab_size: int
    tie_embeddings: bool
    """One matrix serves as token embedding and as output head."""
    max_model_len: int
    """Longest context, in tokens."""
    dtype: str
    """Of unquantized weights and of activations."""
    source: str
    """Where the figures come from."""
    confidence: str
    other_parameters: int = 0
    """Weights outside the layers beside the token embedding, the output head and the final norm; split like these."""
    draft_layers: tuple[Layer, ...] = ()
    """Layers that predict several tokens (MTP), which a server loads for speculative decoding only."""
    assumed: tuple[str, ...] = ()
    """What the configuration left open, and what was taken instead."""
    holds_embedding: bool = True
    holds_head: bool = True
    """Whether this is the first and the last stage of a pipeline: all of it, unless `stage` cut it."""

    def __post_init__(self) -> None:
        if not self.layers:
            raise ValueError(f"{self.name} has no layers")
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"{self.name}: unknown dtype {self.dtype!r}; known: {', '.join(DTYPE_BYTES)}")

    @property
    def _mixers(self) -> list[AttentionPart]:
        return [mixer for layer in self.layers for mixer in layer.mixers]

    @property
    def element_bytes(self) -> int:
        """Bytes of one unquantized weight or activation."""
        return DTYPE_BYTES[self.dtype]

    @property
    def reaches(self) -> tuple[Reach, ...]:
        """The distinct windows and chunks of the layers, in order of first appearance; full attention is not one."""
        everything = Everything()
        reaches = dict.fromkeys(mixer.reach for mixer in self._mixers)
        return tuple(reach for reach in reaches if reach != everything)

    # Weights

    def embedding_parameters(self, tensor_parallel: int = 1) -> int:
        """Weights of one embedding or output matrix on one rank: the vocabulary is split."""
        return cdiv(self.vocab_size, tensor_parallel) * self.hidden_size

    def _outer_parameters(self, tensor_parallel: int) -> int:
        one_serves_both = self.tie_embeddings and self.holds_embedding and self.holds_head
        num_matrices = self.holds_embedding + self.holds_head - one_serves_both
        split = num_matrices * self.embedding_parameters(tensor_parallel)
        if self.holds_embedding:
            split += cdiv(self.other_parameters, tensor_parallel)
        return split + self.hidden_size * self.holds_head  # the final norm

    @property
    def num_parameters(self) -> int:
        """All weights."""
        return self._outer_parameters(1) + sum(layer.num_parameters() for layer in self.layers)

    @property
    def num_active_parameters(self) -> int:
        """Weights that one token passes, embeddings included: all but the experts not chosen."""
        return self._outer_parameters(1) + sum(layer.num_active_parameters() for layer in self.layers)

    def weight_bytes(self, tensor_parallel: int = 1) -> int:
        """Bytes of the weights on one of `tensor_parallel` ranks, as published, without the layers that draft.

        Heads, channels, MLPs, experts and the vocabulary are split; norms and routers are on every
        rank. Experts may also be dealt out whole (expert parallelism): that takes the same bytes.
        Raises ValueError where the heads or channels cannot be split evenly.
        """
        layers = sum(layer.weight_bytes(self.element_bytes, tensor_parallel) for layer in self.layers)
        return self._outer_parameters(tensor_parallel) * self.element_bytes + layers

    def draft_weight_bytes(self, tensor_parallel: int = 1) -> int:
        """Bytes of the layers that draft, on one rank; they share embedding and head with the others."""
        return sum(layer.weight_bytes(self.element_bytes, tensor_parallel) for layer in self.draft_layers)

    def kernel_padding_bytes(self, tensor_parallel: int = 1) -> int:
        """What loading adds to `weight_bytes` on one rank, because kernels want quantized experts in round sizes."""
        return sum(mlp.kernel_padding_bytes(tensor_parallel) for layer in self.layers for mlp in layer.mlps)

    def can_split(self, tensor_parallel: int) -> bool:
        """Whether every layer's heads or channels can be split evenly over so many ranks."""
        return all(mixer.can_split(tensor_parallel) for mixer in self._mixers)

    def routings(self, tensor_parallel: int = 1) -> Iterable[Routing]:
        """The routed experts of each layer that has some, on one rank."""
        for layer in self.layers:
            yield from layer.routings(self.element_bytes, tensor_parallel)

    @property
    def has_experts(self) -> bool:
        """Whether a layer routes tokens to experts."""
        return any(True for _ in self.routings())

    def shared_weights(self, tensor_parallel: int = 1) -> tuple[StoredWeights, ...]:
        """The layers' weights on one rank that every token passes, one entry a format; None: as `dtype` has them.

        With the routed experts, the embedding, the output head and the final norm they are `weight_bytes`.
        """
        layers = (layer.shared_weights(self.element_bytes, tensor_parallel) for layer in self.layers)
        return StoredWeights.by_format(chain.from_iterable(layers))

    # Pipeline stages

    def stage_ends(self, pipeline_parallel: int) -> list[int]:
        """Behind which layer each stage ends. Where they cannot be equal, those before the last get one more.

        As in vLLM 0.32 (`distributed/utils.py`, `get_pp_indices`).
        """
        size, rest = divmod(len(self.layers), pipeline_parallel)
        last = pipeline_parallel - 1
        return list(accumulate(size + (last - rest <= stage < last) for stage in range(pipeline_parallel)))

    def stages(self, pipeline_parallel: int) -> list["Model"]:
        """What each stage holds: its layers, the first the embedding, the last the head and the layers that draft."""
        ends = self.stage_ends(pipeline_parallel)
        return [
            replace(
                self,
                layers=self.layers[start:end],
                holds_embedding=start == 0,
                holds_head=end == len(self.layers),
                draft_layers=self.draft_layers if end == len(self.layers) else (),
            )
            for start, end in zip([0, *ends], ends, strict=False)
        ]

    # What is kept for each request

    def kv_cache_options(  # noqa: PLR0913, PLR0917  a flag each, as on a server's command line
        self,
        block_size: int = 16,
        tensor_parallel: int = 1,
        kv_cache_dtype: str = "auto",
        mamba_cache_dtype: str = "auto",
        mamba_ssm_cache_dtype: str = "auto",
        mamba_cache_mode: str = "none",
        num_speculative_tokens: int = 0,
    ) -> KVCacheOptions:
        """The options with each "auto" resolved as vLLM does.

        Keys, values and convolution states take the model's dtype, the recurrent state its own if the
        model declares one, or else that of the convolution; "fp8" means fp8_e4m3.
        """
        conv_dtype = self.dtype if mamba_cache_dtype == "auto" else mamba_cache_dtype
        kv_dtype = {"auto": self.dtype, "fp8": "fp8_e4m3"}.get(kv_cache_dtype, kv_cache_dtype)
        return KVCacheOptions(
            block_size=block_size,
            tensor_parallel=tensor_parallel,
            kv_dtype=kv_dtype,
            conv_dtype=conv_dtype,
            ssm_dtype=None if mamba_ssm_cache_dtype == "auto" else mamba_ssm_cache_dtype,
            mamba_cache_mode=mamba_cache_mode,
            num_speculative_tokens=num_speculative_tokens,
        )

    def kv_cache_specs(self, **options: Any) -> list[KVCacheSpec]:
        """What each layer keeps on one rank, in layer order; what keeps nothing has no entry.

        `options` are those of `kv_cache_options`. With speculative tokens, the layers that draft them
        come last. Blocks and states are raw: pages of unlike layers are made equal by whoever groups them.
        Raises ValueError where the heads or channels cannot be split evenly over the ranks, or a dtype is
        unknown.
        """
        return [spec for _, spec in self.kv_cache_layers(**options)]

    def kv_cache_layers(self, **options: Any) -> list[tuple[int, KVCacheSpec]]:
        """(layer, what it keeps) as in `kv_cache_specs`; layers that draft are numbered behind the others."""
        resolved = self.kv_cache_options(**options)
        layers = (*self.layers, *self.draft_layers) if resolved.num_speculative_tokens else self.layers
        specs = ((index, mixer.spec(resolved)) for index, layer in enumerate(layers) for mixer in layer.mixers)
        return [(index, spec) for index, spec in specs if spec is not None]

    def mixing_costs(self, options: KVCacheOptions) -> list[MixingCost]:
        """What each layer does and moves to mix the tokens of one request, in layer order."""
        return [mixer.mixing_cost(options) for mixer in self._mixers]

    def activation_elements(self, tensor_parallel: int = 1) -> int:
        """Numbers alive at once for one token in its most demanding layer on one rank, the residual stream included."""
        widest = max(part.activation_elements(tensor_parallel) for layer in self.layers for part in layer.parts)
        return widest + 2 * self.hidden_size  # the stream and the branch that will be added to it
