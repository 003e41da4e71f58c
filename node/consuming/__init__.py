"""How groups consume: assignment of queues, POP, long polls, retry topics, lite topics.

Services over the core; a protocol calls them. They know filters and what is deferred, no protocol
and no broker.
"""
