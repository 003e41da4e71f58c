"""How groups consume: assignment of queues, POP, long polls, retry topics, lite topics.

Services on top of the core, called by the protocols. They may use `filters` and `deferred`, but no
protocol and not the broker.
"""
