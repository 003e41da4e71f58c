"""POP: messages leased to consumers, retried, and finally moved to a dead-letter topic.

Lite topics are consumed in this way, too. Services on top of the core, called by the protocols.
They may use `consuming`, `deferred` and `filters`, but no protocol and not the broker.
"""
