"""GLM-4.5 and 4.6: full attention, the first layers dense and experts in the others, and a layer that drafts."""

from models_configs.attention import FullAttention
from models_configs.families.common import draft_layer_of, layer_of, layers_of, read_dense_mlp, read_experts, read_heads
from models_configs.hf_config import HFConfig
from models_configs.mlp import MixtureOfExperts
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY"]


def _experts(config: HFConfig) -> MixtureOfExperts:
    num_shared = config.integer("n_shared_experts") if config.has("n_shared_experts") else 0
    shared_size = num_shared * config.integer("moe_intermediate_size")
    return read_experts(config, count="n_routed_experts", shared_expert_size=shared_size)


def _stack(config: HFConfig) -> Stack:
    has_norm = config.flag("use_qk_norm", default=False)
    attention = FullAttention(read_heads(config, has_output_bias=False, has_qk_norm=has_norm))
    dense, experts = read_dense_mlp(config), _experts(config)
    num_dense = config.integer("first_k_dense_replace")
    draft = draft_layer_of(config, attention, experts)
    return Stack(
        layers_of(config, lambda index: layer_of(config, attention, dense if index < num_dense else experts)),
        draft_layers=(draft,) * config.integer("num_nextn_predict_layers", default=0),
    )


_GLM = {
    "model_type": "glm4_moe",
    "num_hidden_layers": 92,
    "hidden_size": 5120,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "attention_bias": True,
    "use_qk_norm": True,
    "intermediate_size": 12288,
    "first_k_dense_replace": 3,
    "moe_intermediate_size": 1536,
    "n_routed_experts": 160,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "num_nextn_predict_layers": 1,
    "vocab_size": 151552,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}

_RTP_LLM = "github alibaba/rtp-llm@4b8d39cd5cbe rtp_llm/test/model_test/fake_test/testdata/glm45/tokenizer/config.json"

FAMILY = Family(
    model_types=("glm4_moe",),
    stack=_stack,
    ties_embeddings=False,
    published=(
        Published(
            name="glm-4.5",
            hf_id="zai-org/GLM-4.5",
            same_shape=("zai-org/GLM-4.5-Base",),
            config={**_GLM, "max_position_embeddings": 131072},
            source=_RTP_LLM,
            confidence=Confidence.CONFIG,
        ),
        Published(
            name="glm-4.6",
            hf_id="zai-org/GLM-4.6",
            config={**_GLM, "max_position_embeddings": 202752},
            source=f"the shape of GLM-4.5 ({_RTP_LLM}); github vllm-project/recipes models/zai-org/GLM-4.6.yaml",
            confidence=Confidence.TRANSCRIBED,
        ),
    ),
)
