"""Programs that drive real nodes from outside: the demo, the flights, `duolog bench`.

Tests, benchmarks and the fault runs of cluster/ start their nodes with `childnode`. A node knows
nothing of this package; the command line names its commands by their modules.
"""
