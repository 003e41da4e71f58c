"""The engine: one store kept going on an event loop.

Puts and what they wait for, dispatch, group commit, flushes, segments made ahead, retention,
removal of queues, the times that records get, and who is woken by new messages. It knows the store
and the clocks, no protocol and no service; of other nodes only what the port `Replicas` says.
Whoever owns a store may come in.
"""
