"""The upkeep of a store's files: segments made ahead, flushes, group commit, retention.

Work that may block runs in threads, and its results are applied on the event loop. It knows the
store alone; the engine runs it, and nobody else comes in but for the verbs of group commit.
"""
