"""How groups read: assignment of queues, offsets, reads and long polls.

Services on top of the core, called by the protocols. They may use `filters` and `deferred`, but no
protocol and not the broker. `pop`, the protocols and the broker may use them.
"""
