"""How a group elects its master: registry, lease, and execution of the machine's decisions.

It changes roles through the port `Roles`. It may use the log and replication, but no service and no
protocol. The broker, the protocols and the server may use it.
"""
