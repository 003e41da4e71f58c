"""CRC-32C (Castagnoli) of frame headers and of the small files of ha/; never of bulk data."""

import crcmod.predefined

_crc32c = crcmod.predefined.mkCrcFun("crc-32c")


def crc32c(data: bytes) -> int:
    """CRC-32C of bytes."""
    return int(_crc32c(data))
