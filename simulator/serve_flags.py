"""Every flag of vLLM 0.32's `serve`, by what it means for KV memory.

Names stand without their dashes and in order; each is in one of the tables `HONOURED`, `IGNORED`,
`IGNORED_SWITCHES`, `NOT_MODELLED` and `NOT_MODELLED_SWITCHES`.
"""

__all__ = [
    "CHANGE_KV_MEMORY",
    "HONOURED",
    "IGNORED",
    "IGNORED_SWITCHES",
    "NOT_MODELLED",
    "NOT_MODELLED_SWITCHES",
    "OFF",
    "ONE_WAY_SWITCHES",
    "SEVERAL_VALUES",
    "SPELLINGS",
]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


HONOURED: dict[str, str] = {
    "async-scheduling": "switch",
    "block-size": "whole",
    "disable-hybrid-kv-cache-manager": "switch",
    "dtype": "dtype",
    "enable-expert-parallel": "switch",
    "enable-prefix-caching": "switch",
    "enforce-eager": "switch",
    "gpu-memory-utilization": "text",
    "kv-cache-dtype": "text",
    "kv-cache-memory-bytes": "suffixed or None",
    "long-prefill-token-threshold": "whole",
    "mamba-block-size": "whole or None",
    "mamba-cache-dtype": "text",
    "mamba-ssm-cache-dtype": "text",
    "max-model-len": "suffixed or auto",
    "max-num-batched-tokens": "suffixed",
    "max-num-seqs": "whole",
    "model": "model",
    "num-gpu-blocks-override": "whole or None",
    "pipeline-parallel-size": "whole",
    "prefix-cache-retention-interval": "interval",
    "quantization": "text or None",
    "scheduler-reserve-full-isl": "switch",
    "scheduling-policy": "text",
    "spec-method": "draft",
    "spec-model": "draft",
    "spec-tokens": "draft",
    "speculative-config": "draft",
    "tensor-parallel-size": "whole",
    "watermark": "text",
}
"""How the value of each flag that changes KV memory is read; the reader of each kind is in `serve_command`."""

IGNORED = _names(
    """
    additional-config all2all-backend allowed-headers allowed-local-media-path allowed-media-domains allowed-methods
    allowed-origins anthropic-disabled-thinking-effort api-key api-server-count attention-backend attention-config
    aux-output-config chat-template chat-template-content-format code-revision cohere-format collect-detailed-traces
    compilation-config config-format cp-kv-cache-interleave-size cpu-distributed-timeout-seconds cpu-offload-params
    cudagraph-capture-sizes custom-histogram-buckets data-parallel-address data-parallel-backend data-parallel-rank
    data-parallel-rpc-port data-parallel-size data-parallel-size-local data-parallel-start-rank
    data-parallel-supervisor-port dbo-decode-token-threshold dbo-prefill-token-threshold dcp-comm-backend
    dcp-kv-cache-interleave-size default-chat-template-kwargs default-mm-loras device-ids
    disable-access-log-for-endpoints distributed-executor-backend distributed-timeout-seconds download-dir
    dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s dp-sync-interval
    ec-manager-config ec-transfer-config elastic-ep-max-dp-size expert-placement-strategy fault-tolerance-config
    fingerprint-mode fingerprint-value gdn-prefill-backend generation-config grpc-port h11-max-header-count
    h11-max-incomplete-event-size hf-token host ignore-patterns io-processor-plugin ir-op-priority jit-monitor-mode
    kda-decode-backend kda-prefill-backend kernel-config kv-cache-metrics-sample kv-events-config kv-offloading-backend
    limit-mm-per-prompt linear-backend load-format log-config-file log-level logging-config logits-processors
    logprobs-mode lora-dtype lora-modules lora-target-modules mamba-backend mamba-cache-mode mamba-cache-philox-rounds
    mamba-ssu-algorithm master-addr master-port max-cpu-loras max-cudagraph-capture-size max-log-len max-logprobs
    max-lora-cls-labels max-lora-rank max-loras max-num-active-seqs max-num-queued-reqs max-num-queued-tokens
    max-num-scheduled-tokens max-parallel-loading-workers media-io-kwargs middleware mm-encoder-attn-backend
    mm-encoder-attn-dtype mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-margin mm-encoder-fp8-scale-save-path
    mm-encoder-tp-mode mm-hasher-algorithm mm-processor-cache-gb mm-processor-cache-type mm-processor-device
    mm-processor-kwargs mm-shm-cache-max-object-size-mb mm-tensor-ipc model-impl model-loader-extra-config moe-backend
    nnodes node-rank numa-bind-cpus numa-bind-nodes offload-backend offload-num-in-group offload-params
    offload-prefetch-step optimization-level otlp-traces-endpoint override-generation-config
    per-request-spec-decode-metrics pooler-config port prefill-schedule-interval prefix-caching-hash-algo
    prefix-match-unit profiler-config pt-load-map-location reasoning-config reasoning-parser
    reasoning-parser-plugin renderer-num-workers replayssm-buffer-len response-role revision root-path
    safetensors-load-strategy safetensors-prefetch-block-size safetensors-prefetch-num-threads scheduler-cls seed
    served-model-name show-hidden-metrics-for-version shutdown-timeout sleep-preserve-parameter-names
    sparse-indexer-topk-backend sse-keep-alive-interval ssl-ca-certs ssl-cert-reqs ssl-certfile ssl-ciphers ssl-keyfile
    stream-interval structured-outputs-config swap-space tokenizer tokenizer-mode tokenizer-revision tool-call-parser
    tool-parser-plugin tool-server tool-strict-level ubatch-size uds uvicorn-log-level video-pruning-method
    video-pruning-rate watermark-config weight-transfer-config worker-cls worker-extension-cls
    """
)
"""Flags with a value that do not change KV memory.

Those of graphs, kernels and inputs other than text change what is left for it by less than the estimate of
`simulator.memory` is uncertain by. `swap-space` is of earlier versions.
"""

IGNORED_SWITCHES = _names(
    """
    aggregate-engine-logging allow-credentials allow-deprecated-quantization calculate-kv-scales
    cohere-is-reasoning-model cudagraph-metrics data-parallel-external-lb data-parallel-hybrid-lb
    data-parallel-multi-port-external-lb dcp-q-replicate disable-cascade-attn disable-chunked-mm-input
    disable-custom-all-reduce disable-fastapi-docs disable-log-requests disable-log-stats
    disable-nccl-for-dp-synchronization disable-uvicorn-access-log enable-auto-tool-choice enable-batch-sharded-sampling
    enable-cumem-allocator enable-dbo enable-elastic-ep enable-ep-weight-filter enable-eplb enable-fault-tolerance
    enable-flash-late-interaction enable-flashinfer-autotune enable-force-include-usage enable-hc-sp
    enable-layerwise-nvtx-tracing enable-log-deltas enable-log-outputs enable-log-requests
    enable-logging-iteration-details enable-mamba-cache-stochastic-rounding enable-mfu-metrics
    enable-mixed-moe-lora-format enable-mm-embeds enable-moe-shared-loras enable-nccl-comm-suspend enable-offline-docs
    enable-per-request-metrics enable-prompt-embeds enable-prompt-tokens-details enable-request-id-headers
    enable-return-routed-experts enable-scale-out enable-server-load-tracking enable-shm-tensor-arena enable-sleep-mode
    enable-ssl-refresh enable-tokenizer-info-endpoint enable-tower-connector-lora enable-trace-replay
    exclude-tools-when-tool-choice-none fail-on-environ-validation fully-sharded-loras grpc headless help
    interleave-mm-strings jit-monitor-verbose kv-cache-metrics kv-sharing-fast-prefill language-model-only
    log-error-stack long-prefill-token-threshold-adaptive mm-device-do-normalize numa-bind ray-workers-use-nsight
    return-sampling-mask return-tokens-as-token-ids skip-mm-profiling skip-tokenizer-init sleep-mode-offload-cudagraph
    specialize-active-lora tokens-only trust-remote-code trust-request-chat-template trust-request-mm-kwargs
    use-fp64-gumbel use-tqdm-on-load
    """
)
"""The same without a value. `calculate-kv-scales` and `disable-log-requests` are of earlier versions."""

NOT_MODELLED: dict[str, str] = {
    "convert": "models that do not generate text",
    "cpu-offload-gb": "weights kept in the host's memory",
    "decode-context-parallel-size": "a context split over ranks",
    "diffusion-config": "text diffusion",
    "engram-config": "where embedding tables are kept",
    "eplb-config": "redundant experts",
    "hf-config-path": "a config.json from another place than the model's",
    "hf-overrides": "a changed config.json",
    "kv-cache-dtype-skip-layers": "layers that keep another dtype",
    "kv-offloading-size": "KV kept in the host's memory",
    "kv-transfer-config": "KV moved elsewhere",
    "mm-ipc-gpu-memory-gb": "device memory kept for inputs other than text",
    "model-class-overrides": "another implementation of the model",
    "offload-group-size": "weights kept in the host's memory",
    "performance-mode": "the larger defaults of this mode",
    "prefill-context-parallel-size": "a context split over ranks",
    "quantization-config": "a quantization with details of its own",
    "runner": "models that do not generate text",
}
"""Flags with a value that change KV memory in a way that kvplan does not know: what it would have to model."""

OFF: dict[str, tuple[str, ...]] = {
    "convert": ("auto", "none"),
    "cpu-offload-gb": ("0",),
    "decode-context-parallel-size": ("1",),
    "mm-ipc-gpu-memory-gb": ("0",),
    "offload-group-size": ("0",),
    "performance-mode": ("balanced", "interactivity"),
    "prefill-context-parallel-size": ("1",),
    "runner": ("auto", "generate"),
}
"""The values at which such a flag changes nothing."""

NOT_MODELLED_SWITCHES: dict[str, str] = {
    "disable-sliding-window": "sliding-window layers that attend to the whole context",
    "enable-lora": "adapters",
    "enable-mamba-shared-prefix-checkpoint": "states kept where prefixes part",
    "mm-encoder-only": "servers without a language model",
    "no-enable-chunked-prefill": "prompts that run in one step",
    "no-swa-bounded-replay": "cached windows of models that replay them",
    "use-replayssm": "rings of recent inputs beside the states",
}
"""Switches as they are refused, on or (`no-...`) off: what kvplan would have to model."""

SPELLINGS: dict[str, str] = {
    "--device-memory-utilization": "gpu-memory-utilization",
    "-O": "optimization-level",
    "-ac": "attention-config",
    "-asc": "api-server-count",
    "-cc": "compilation-config",
    "-dc": "diffusion-config",
    "-dcp": "decode-context-parallel-size",
    "-dp": "data-parallel-size",
    "-dpa": "data-parallel-address",
    "-dpb": "data-parallel-backend",
    "-dpe": "data-parallel-external-lb",
    "-dph": "data-parallel-hybrid-lb",
    "-dpl": "data-parallel-size-local",
    "-dpm": "data-parallel-multi-port-external-lb",
    "-dpn": "data-parallel-rank",
    "-dpp": "data-parallel-rpc-port",
    "-dpr": "data-parallel-start-rank",
    "-ep": "enable-expert-parallel",
    "-h": "help",
    "-n": "nnodes",
    "-pcp": "prefill-context-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-q": "quantization",
    "-r": "node-rank",
    "-sc": "speculative-config",
    "-tp": "tensor-parallel-size",
}
"""Other ways to write a flag."""

SEVERAL_VALUES = _names(
    """
    allowed-media-domains api-key collect-detailed-traces cpu-offload-params cudagraph-capture-sizes ignore-patterns
    kv-cache-dtype-skip-layers logits-processors lora-modules lora-target-modules numa-bind-cpus numa-bind-nodes
    offload-params served-model-name sleep-preserve-parameter-names
    """
)
"""Flags that take every word up to the next flag."""

ONE_WAY_SWITCHES = _names(
    """
    aggregate-engine-logging data-parallel-multi-port-external-lb disable-log-stats grpc headless help
    """
)
"""Switches that have no `--no-...`."""

CHANGE_KV_MEMORY = _names(
    """
    VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE VLLM_KV_CACHE_LAYOUT VLLM_MLA_DISABLE
    VLLM_PP_LAYER_PARTITION
    """
)
"""Environment variables that do."""
