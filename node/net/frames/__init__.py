"""The native API over frames: the services of `node.api`, called through another transport.

Only `serve.server` comes in here. What is in here knows the handlers that the generated code makes
of the services, the one verb that appends, and nothing else of a node.
"""
