"""The broker: where IO lives. Native API, event loop, flush threads, elections, configuration.

Rules: the event loop owns the store; anything that may block (fdatasync, allocation, snapshots)
runs in threads on plain objects; every wait has a deadline, every queue a bound, every task an
owner.
"""
