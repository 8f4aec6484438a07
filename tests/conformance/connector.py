"""vLLM's side of tokens that are computed elsewhere, or go on there: a KV connector that does what a scenario says.

Of a request with `"remote": {"tokens": n, "steps": k}` it has the first n tokens, once. Their load is reported to have
ended with the output of the k-th step after the one that starts it. The blocks of a request with `"lent": k` are read
by somebody once it has finished: that is reported with the output of the (k+1)-th step after the one that ends it.
`record.py` connects it; it needs vLLM.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vllm.config import KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.v1.outputs import KVConnectorOutput

__all__ = ["Remote", "connect"]


class Nothing(KVConnectorMetadata):
    """There is no worker to tell anything."""


class Remote(KVConnectorBase_V1, SupportsHMA):
    """Holds beginnings of some requests."""

    latest: "Remote"
    """The one that the scheduler made last."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        said = self._kv_transfer_config.kv_connector_extra_config
        self._offers: dict[str, dict[str, int]] = dict(said["offers"])
        self._lent: dict[str, int] = said["lent"]
        self._ends: dict[int, set[str]] = {}
        self._reads: dict[int, dict[str, None]] = {}  # a set's order would be another in each process
        self._num_planned = self._num_settled = 0
        Remote.latest = self

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        offer = self._offers.get(request.request_id)
        num_tokens = 0 if offer is None else offer["tokens"] - num_computed_tokens
        return (num_tokens, True) if num_tokens > 0 else (0, False)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        offer = self._offers.pop(request.request_id, None)
        if offer is not None and num_external_tokens:
            self._ends.setdefault(self._num_planned + offer["steps"], set()).add(request.request_id)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        self._num_planned += 1
        return Nothing()

    def settle(self) -> KVConnectorOutput:
        """What a worker says with the output of the next step."""
        ended, read = self._ends.pop(self._num_settled, None), self._reads.pop(self._num_settled, None)
        self._num_settled += 1
        return KVConnectorOutput(finished_recving=ended, finished_sending=read)

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        steps = self._lent.get(request.request_id)
        if steps is None:
            return False, None
        self._reads.setdefault(self._num_settled + steps, {})[request.request_id] = None
        return True, None

    # A worker's part: there is none.

    def start_load_kv(self, *_: Any, **__: Any) -> None: ...

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, *_: Any, **__: Any) -> None: ...

    def wait_for_save(self) -> None: ...


def connect(oracle: ModuleType, config: VllmConfig, scenario: dict[str, Any]) -> Callable[[], None]:
    """Let the next scheduler have the connector; gives back what ends that."""
    offers = {request["id"]: request["remote"] for request in scenario["requests"] if "remote" in request}
    lent = {request["id"]: request["lent"] for request in scenario["requests"] if "lent" in request}
    config.kv_transfer_config = KVTransferConfig(
        kv_connector="Remote", kv_role="kv_both", kv_connector_module_path=__name__,
        kv_connector_extra_config={"offers": offers, "lent": lent},
    )  # fmt: skip
    output = oracle.ModelRunnerOutput
    oracle.ModelRunnerOutput = lambda **fields: output(**fields, kv_connector_output=Remote.latest.settle())

    def disconnect() -> None:
        oracle.ModelRunnerOutput = output

    return disconnect
