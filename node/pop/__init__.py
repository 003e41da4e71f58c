"""POP: messages that are leased to consumers, retried, and at last put among the dead letters.

Lite topics are consumed this way too. Services over the core; protocols call them. They know
filters, what is deferred and the core, no protocol and no broker.
"""
