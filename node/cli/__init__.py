"""The command line `duolog`: nouns, then verbs; data on stdout, talk on stderr."""
