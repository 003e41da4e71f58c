"""Deferred delivery: delays, timers, transactions, published batches.

Services on top of the core, and the appends that lead to them. They may not use `consuming`, the
broker or a protocol, except for the append request, the form in which batches are staged. The
broker, the protocols and `pop` may use them.
"""
