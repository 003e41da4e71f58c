"""The core: what every service of a node uses.

The log with its clocks, the metadata tables, and admission. It may use the engine and replication.
Services, protocols and the broker may use it.
"""
