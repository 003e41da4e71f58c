"""Every port of a node, fuzzed by peers that nobody knows; `ports.py` does it for longer."""

import pytest

from tests.fuzz import ports

LOG_LINES_MAX = 200  # about ten events, each limited


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_no_port_lets_unknown_peers_end_the_node_or_use_it_up(seed: int) -> None:
    result = await ports.fuzz(7.0, seed)
    assert min(result.inputs.values()) >= ports.INPUTS_MIN
    assert result.still_seconds <= ports.STILL_SECONDS_MAX
    assert result.calls >= ports.CALLS_MIN
    assert result.log_lines <= LOG_LINES_MAX
    assert result.grown_mib <= ports.GROWTH_MIB_MAX
