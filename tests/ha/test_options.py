"""Options of replication at the edges of what they may be."""

from typing import Any

import pytest

from duolog_server.ha.options import HaOptions

TIMES = (
    "slave_timeout",
    "ha_max_time_slave_not_catchup",
    "ha_send_heartbeat_interval",
    "ha_housekeeping_interval",
)


@pytest.mark.parametrize(
    "chosen",
    [
        {"in_sync_replicas": 1, "min_in_sync_replicas": 1},
        {"in_sync_replicas": 3, "min_in_sync_replicas": 3},
        {"ha_transfer_batch_size": 1024},
        {"ha_transfer_batch_size": 1 << 20, "ha_in_flight_max": 1 << 20},
        *({name: 1} for name in TIMES),
        {"max_ha_transfer_byte_in_second": 0},
        {"max_ha_transfer_byte_in_second": 1},
        {"ha_slave_fallbehind_max": 1},
        {"access_message_in_memory_max_ratio": 0},
        {"access_message_in_memory_max_ratio": 100},
    ],
)
def test_boundary_values_are_accepted(chosen: dict[str, Any]) -> None:
    made = HaOptions(**chosen)
    assert {name: getattr(made, name) for name in chosen} == chosen


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"in_sync_replicas": 0, "min_in_sync_replicas": 0}, "min_in_sync_replicas"),
        ({"in_sync_replicas": 2, "min_in_sync_replicas": 3}, "min_in_sync_replicas"),
        ({"min_in_sync_replicas": 0}, "min_in_sync_replicas"),
        ({"ha_transfer_batch_size": 1023}, "from 1 KiB to 1 MiB"),
        ({"ha_transfer_batch_size": (1 << 20) + 1}, "from 1 KiB to 1 MiB"),
        ({"ha_in_flight_max": (1 << 20) - 1}, "ha_in_flight_max"),
        *(({name: 0}, f"{name} must be at least 1 ms") for name in TIMES),
        ({"max_ha_transfer_byte_in_second": -1}, "max_ha_transfer_byte_in_second"),
        ({"ha_slave_fallbehind_max": 0}, "ha_slave_fallbehind_max"),
        ({"access_message_in_memory_max_ratio": -1}, "from 0 to 100"),
        ({"access_message_in_memory_max_ratio": 101}, "from 0 to 100"),
    ],
)
def test_values_that_prevent_replication_are_refused(chosen: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        HaOptions(**chosen)
