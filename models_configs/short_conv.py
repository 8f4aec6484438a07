"""Short convolutions: each channel is mixed over the last few tokens, between two gates (LFM2)."""

from dataclasses import dataclass

from models_configs.parts import KVCacheOptions
from models_configs.quantization import Weights
from models_configs.states import StateMixer, split_evenly

__all__ = ["ShortConv"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConv(StateMixer):
    """One gated short convolution."""

    channels: int
    d_conv: int
    """Taps of the convolution, the current token included."""
    has_bias: bool = False

    @property
    def shard_units(self) -> int:
        """Channels."""
        return self.channels

    def _channels(self, tensor_parallel: int) -> int:
        return split_evenly(self.channels, tensor_parallel, "convolution channels")

    def weights(self, tensor_parallel: int) -> Weights:
        """Projections in (to the two gates and x) and out, convolution, biases."""
        channels = self._channels(tensor_parallel)
        others = channels * self.d_conv
        if self.has_bias:
            others += 4 * channels + self.hidden_size
        return Weights(4 * channels * self.hidden_size, others)

    def shapes(self, tensor_parallel: int, num_speculative_tokens: int) -> tuple[tuple[int, ...], ...]:
        """The convolution's last inputs."""
        return ((self.d_conv - 1 + num_speculative_tokens, self._channels(tensor_parallel)),)

    def dtypes(self, options: KVCacheOptions) -> tuple[str, ...]:
        """There is no recurrent state."""
        return (options.conv_dtype,)

    def flops_per_token(self, tensor_parallel: int) -> int:
        """Taps and gates."""
        return self._channels(tensor_parallel) * (2 * self.d_conv + 2)

    def activation_elements(self, tensor_parallel: int = 1) -> int:
        """The two gates, x, and the output."""
        return 4 * self._channels(tensor_parallel)
