"""Mamba-1: a selective state space, which keeps one state of constant size instead of tokens."""

from dataclasses import dataclass

from kvcache.specs import MambaSpec
from models_configs.parts import KVCacheOptions, MixingCost
from models_configs.reach import Everything, Reach

__all__ = ["Mamba1"]

_SCAN_FLOPS_PER_STATE_ELEMENT = 8
"""exp(delta A) 2, delta B x 2, state update 2, C h 2: the recurrence of Mamba (arXiv 2312.00752, algorithm 2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba1:
    """One Mamba-1 mixer; field names without their Hugging Face prefix `mamba_`."""

    hidden_size: int
    inner_size: int
    """Channels: `expand` times the hidden size."""
    d_state: int
    """State elements per channel."""
    d_conv: int
    """Taps of the convolution, the current token included."""
    dt_rank: int
    has_conv_bias: bool = True
    has_proj_bias: bool = False
    has_norms: bool = False
    """Learned norms over dt, B and C (Jamba)."""

    @property
    def reach(self) -> Reach:
        """A state stands for everything before it: a token pays nothing for the length of its context."""
        return Everything()

    @property
    def shard_units(self) -> int:
        """Channels."""
        return self.inner_size

    def _channels(self, tensor_parallel: int) -> int:
        if self.inner_size % tensor_parallel:
            raise ValueError(f"{self.inner_size} Mamba channels cannot be split evenly over {tensor_parallel} ranks")
        return self.inner_size // tensor_parallel

    def num_parameters(self, tensor_parallel: int = 1) -> int:
        """Projections in (to x and z) and out, convolution, dt/B/C projection, dt projection, A, D, norms."""
        channels = self._channels(tensor_parallel)
        selection_size = self.dt_rank + 2 * self.d_state
        per_channel = (
            3 * self.hidden_size  # in to x and z, and out
            + (self.d_conv + self.has_conv_bias)
            + selection_size
            + (self.dt_rank + 1)  # the dt projection always has a bias
            + (self.d_state + 1)  # A and D
        )
        num_parameters = channels * per_channel
        if self.has_proj_bias:
            num_parameters += 2 * channels + self.hidden_size
        if self.has_norms:
            num_parameters += selection_size
        return num_parameters

    def spec(self, options: KVCacheOptions) -> MambaSpec:
        """The convolution's last inputs and the recurrent state, before any padding or alignment of blocks."""
        channels = self._channels(options.tensor_parallel)
        return MambaSpec(
            block_size=options.block_size,
            shapes=((self.d_conv - 1, channels), (channels, self.d_state)),
            dtypes=(options.conv_dtype, options.ssm_dtype),
            cache_mode=options.mamba_cache_mode,
        )

    def mixing_cost(self, options: KVCacheOptions) -> MixingCost:
        """The scan over each token; the state read once and written once for all tokens of a request."""
        channels = self._channels(options.tensor_parallel)
        return MixingCost(
            reach=self.reach,
            flops_per_token=channels * (_SCAN_FLOPS_PER_STATE_ELEMENT * self.d_state + 2 * self.d_conv),
            bytes_per_request=2 * self.spec(options).state_bytes,
        )

    def activation_elements(self, tensor_parallel: int = 1) -> int:
        """The two halves x and z, the convolved x, dt and the output, besides the small B and C."""
        return 5 * self._channels(tensor_parallel) + self.dt_rank + 2 * self.d_state
