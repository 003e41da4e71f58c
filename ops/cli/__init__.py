"""The command line `duolog`: nouns, then verbs; data on stdout, messages on stderr.

Nothing else in `node` imports it.
"""
