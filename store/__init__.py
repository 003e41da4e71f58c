"""The mmap storage engine: bytes and files, byte-compatible with Apache RocketMQ 4.9.

Rules: no network, no asyncio, no threads, no clock and no randomness in here. Time arrives as
`now_ms`, files through the disk port (`store.disk`), and slow work (fdatasync, allocation) is
handed out as plain objects that the caller may run wherever it likes.
"""
