"""How a group elects its master: registry, lease, and the machine's decisions carried out.

It changes roles through `Roles`; it knows the log and replication, no service and no protocol.
"""
