"""The engine room: what keeps one store going on an event loop.

Group commit, flushes, segments made ahead, retention, removal of queues, the times that records
get, and who is woken by new messages. It knows the store and the clocks, no protocol, no other
node and no broker: whoever owns a store may come in.
"""
