"""The sizes of index files that are there: how many slots and entries they were made with."""

import struct
from dataclasses import dataclass, replace

import numpy as np

from duolog_server.store.disk import Disk, DiskFile
from duolog_server.store.errors import BadStoreDirectory
from duolog_server.store.indexservice import DIRECTORY, IndexHeader
from duolog_server.store.kernels.index import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES
from duolog_server.store.options import StoreOptions

_SLOT = struct.Struct(">i")
_ENTRY = struct.Struct(">iqii")


@dataclass(frozen=True, slots=True)
class IndexSizes:
    """How many slots and entries an index file has room for."""

    slots: int
    entries: int

    def __str__(self) -> str:
        """For errors."""
        return f"{self.slots:,} slots and {self.entries:,} entries"


def sizes_of(file: DiskFile) -> IndexSizes | None:
    """The sizes with which an index file was made; None where it does not tell.

    No header tells them. But the data ends with the newest entry, which tells its place up to its
    trailing zeros; the right place has the header's newest offset, and its slot leads to it.
    """
    memory, size = file.memory, file.size
    if size < HEADER_BYTES + SLOT_BYTES + ENTRY_BYTES:
        return None
    header = IndexHeader.read(memory)
    newest = header.index_count - 1
    end, width = _data_end(file), ENTRY_BYTES
    for begin in range(end - 1, end - width - 1, -1):
        slots, odd = divmod(begin - HEADER_BYTES - newest * width, SLOT_BYTES)
        entries, rest = divmod(size - HEADER_BYTES - slots * SLOT_BYTES, width)
        if odd or rest or newest < 1 or slots < 1 or newest >= entries or begin + width > size:
            continue
        hashed, phy, *_ = _ENTRY.unpack(memory[begin : begin + width].tobytes())
        slot = HEADER_BYTES + hashed % slots * SLOT_BYTES
        (first,) = _SLOT.unpack(memory[slot : slot + SLOT_BYTES].tobytes())
        if (phy, first) == (header.end_phy, newest):
            return IndexSizes(slots, entries)
    return None


def _data_end(file: DiskFile) -> int:
    """Behind the last byte that is not zero."""
    for low, high in reversed(file.data_ranges(0)):
        for end in range(high, low, -(1 << 20)):
            start = max(low, end - (1 << 20))
            written = np.flatnonzero(file.memory[start:end])
            if len(written):
                return start + int(written[-1]) + 1
    return 0


def found_sizes(disk: Disk) -> IndexSizes | None:
    """The sizes of a directory's index files; None where none of them tells."""
    for name in disk.list(DIRECTORY):
        path = f"{DIRECTORY}/{name}"
        if disk.size(path) > 0:
            file = disk.open(path, False)
            file.cover_holes()
            found = sizes_of(file)
            file.close()
            if found is not None:
                return found
    return None


def as_found(disk: Disk, options: StoreOptions, given: bool) -> StoreOptions:
    """Options with the sizes of the index files that are there.

    given: somebody named the sizes of the options. Raises BadStoreDirectory where the files
    contradict them, or do not tell theirs: a node discards an index of another size.
    """
    found = found_sizes(disk)
    named = IndexSizes(options.max_hash_slot_num, options.max_index_num)
    if found is None:
        sizes = {disk.size(f"{DIRECTORY}/{name}") for name in disk.list(DIRECTORY)}
        if max(sizes, default=0) > HEADER_BYTES and options.index_file_bytes not in sizes:
            raise BadStoreDirectory(
                DIRECTORY,
                f"its files have {max(sizes):,} bytes, those with {named} have "
                f"{options.index_file_bytes:,}: give --index-slots and --index-entries as the "
                "node has them (store.max_hash_slot_num, store.max_index_num), or remove the "
                "directory",
            )
        return options
    if given and found != named:
        raise BadStoreDirectory(
            DIRECTORY,
            f"its files have {found}, not {named}: leave out --index-slots and --index-entries, "
            "or remove the directory to have it made with other sizes",
        )
    return replace(options, max_hash_slot_num=found.slots, max_index_num=found.entries)
