"""Sections of a node that RocketMQ's slaves can copy."""

from typing import Any

from duolog.testing._ports import free_endpoint

from bench.peers.rocketmq import broker_port


def slaves() -> dict[str, Any]:
    """With addresses of its own; the port two below the remoting port is free as well."""
    return {
        "remoting": {"listen": f"127.0.0.1:{broker_port()}"},
        "rocketmq_slaves": {"listen": free_endpoint(), "allow": ["127.0.0.1"]},
    }
