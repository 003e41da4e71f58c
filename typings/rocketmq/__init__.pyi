"""RocketMQ's Python client, of which only the stubs have types here."""

from _typeshed import Incomplete

def __getattr__(name: str) -> Incomplete: ...
