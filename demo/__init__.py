"""Programs that drive real nodes from outside: the demo, the flights, `duolog bench`.

A node knows nothing of this package; the command line names its commands by their modules. Of
`nursery` and `registryserver`, which `duolog.testing` runs, it knows the names alone.
"""
