"""Replication as pure state machines over the store: no IO, clock or chance of their own."""
