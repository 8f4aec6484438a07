"""Random programs against every kind of pool, and planted bugs that they must find."""

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from kvcache.manager import CacheSettings
from kvcache.specs import MLASpec
from tests.kvcache.machine import Configuration, PoolMachine
from tests.kvcache.pools import chunked, full, mamba, sliding

DENSE = CacheSettings(block_size=4, prefix_cache_retention_interval=None)
EVERY_16 = CacheSettings(block_size=4, prefix_cache_retention_interval=16)
NO_CACHE = CacheSettings(block_size=4, enable_prefix_caching=False)
LEAVES_A_FIFTH = CacheSettings(block_size=4, watermark=0.2)

FULL, SLIDING, CHUNKED = full(4), sliding(10, 4), chunked(16, 4)
HALF = full(4, head_size=1, head_size_v=0)
"""Half the bytes of a token: its blocks are twice as long."""
STATE, ONE_STATE = mamba(4), mamba(96, "none", page_tokens=4)

CONFIGURATIONS = [
    Configuration("full", (FULL,) * 2, 60),
    Configuration("full-tight", (FULL,) * 2, 27),
    Configuration("sliding", (SLIDING,) * 2, 40),
    Configuration("sliding-dense-tight", (sliding(9, 4),) * 2, 14, settings=DENSE),
    Configuration("many-groups", (*[SLIDING] * 5, FULL) * 2, 130),
    Configuration("many-groups-every-16", (*[SLIDING] * 3, FULL) * 2, 70, settings=EVERY_16),
    Configuration("full-sliding-dense", (SLIDING, FULL), 60, settings=DENSE),
    Configuration("chunked-full", (CHUNKED, CHUNKED, CHUNKED, FULL), 90),
    Configuration("chunked", (CHUNKED,) * 2, 40),
    Configuration("mamba-align", (STATE, STATE, FULL), 60),
    Configuration("mamba-align-every-16", (STATE, STATE, FULL), 40, settings=EVERY_16),
    Configuration("mamba-align-dense-tight", (STATE, STATE, FULL), 30, settings=DENSE),
    Configuration("mamba-none", (ONE_STATE, ONE_STATE, FULL), 60, settings=NO_CACHE),
    Configuration("two-windows", (SLIDING, sliding(21, 4), FULL), 80),
    Configuration("sliding-state-full", (SLIDING, STATE, FULL), 70, settings=EVERY_16),
    Configuration("chunked-sliding-full", (CHUNKED, SLIDING, FULL), 90),
    Configuration("chunked-sliding", (CHUNKED, SLIDING), 40),
    Configuration("long-blocks", (HALF, SLIDING, SLIDING), 60),
    Configuration("long-windows-dense", (sliding(10, 4, head_size_v=0), FULL), 60, settings=DENSE),
    Configuration("latent", (MLASpec(block_size=4, head_size=2), FULL, SLIDING), 90),
    Configuration("no-cache", (SLIDING, SLIDING, FULL), 70, settings=NO_CACHE),
    Configuration("no-cache-three-types", (ONE_STATE, SLIDING, FULL), 60, settings=NO_CACHE),
    Configuration("watermark", (SLIDING, FULL), 60, settings=LEAVES_A_FIFTH),
]
CALLS = 20_000
PROGRAMS = settings(
    max_examples=20, stateful_step_count=60, derandomize=True, database=None, deadline=None, print_blob=False
)


def machine_of(configuration):
    return type("Machine", (PoolMachine,), {"configuration": configuration, "num_calls": 0})


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda configuration: configuration.name)
def test_random_programs_keep_the_invariants(configuration):
    """Together the configurations see at least 20,000 calls, each its share, with all invariants asked after each."""
    machine = machine_of(configuration)
    run_state_machine_as_test(machine, settings=PROGRAMS)
    assert machine.num_calls >= CALLS / len(CONFIGURATIONS)
