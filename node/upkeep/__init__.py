"""The upkeep of a store's files: preallocation, flushes, group commit, retention.

Work that may block runs in threads, and its results are applied on the event loop. It may use the
store only. The engine runs it and may use it.
"""
