"""The compiled kernels: the per-message work of a node, one numba function per job.

Rules: every kernel has an explicit signature, is cached on disk and releases the GIL. Kernels take
plain arrays only, and never allocate per message. Each has a plain-Python twin in the tests.
"""
