"""Checks whether the index can be trusted, when a store opens.

Every header and all slots are read, and an evenly spread sample of the entries (all in a small
file). The log range between two files is scanned: no record there may have a key.
"""

import struct
from dataclasses import dataclass, replace

import numpy as np

from duolog_server.store.disk import Disk, DiskFile
from duolog_server.store.dispatch import Dispatcher, DispatchTargets
from duolog_server.store.errors import BadStoreDirectory
from duolog_server.store.indexservice import DIRECTORY, IndexFile, IndexHeader, IndexService
from duolog_server.store.kernels import index as kernel
from duolog_server.store.kernels import scan
from duolog_server.store.kernels.index import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES
from duolog_server.store.kernels.jit import I64, U8
from duolog_server.store.options import StoreOptions

SAMPLE = 1024


@dataclass(slots=True)
class _FirstKey:
    """Finds the first record with a key past an offset, among the rows of a dispatch."""

    past: int
    found: int = -1

    def put(self, data: U8, rows: I64, end: int) -> None:
        """Look at rows [0, end)."""
        for row in np.flatnonzero(rows[scan.PHY, :end] > self.past):
            kind = int(rows[scan.SYSFLAG, row]) & scan.TRANSACTION_MASK
            if kind != scan.TRANSACTION_ROLLBACK and _has_key(data, rows, int(row)):
                self.found = int(rows[scan.PHY, row])
                return


def _has_key(data: U8, rows: I64, row: int) -> bool:
    at, size = int(rows[scan.KEYS_AT, row]), int(rows[scan.KEYS_BYTES, row])
    return bool(rows[scan.UNIQ_KEY_BYTES, row] > 0 or (data[at : at + size] != kernel.SPACE).any())


def first_untrusted(index: IndexService, dispatcher: Dispatcher) -> tuple[int, str] | None:
    """Number of the first file that cannot be trusted, and why; None if all can."""
    log = dispatcher.log
    newest = log.min_offset - 1  # keys of records up to here are in the files checked so far
    for place, file in enumerate(index.files):
        header = file.header
        why = _fault(file, log.max_offset)
        if not why and place and header.begin_phy < index.files[place - 1].header.end_phy:
            why = "begins before the previous file ends"
        if not why:
            missed = _first_key(dispatcher, newest, header.begin_phy)
            if missed >= 0:
                why = f"begins at {header.begin_phy}, but the record at {missed} has keys too"
        if why:
            return place, f"{file.file.path} {why}"
        newest = max(newest, header.end_phy)
    return None


def _first_key(dispatcher: Dispatcher, past: int, until: int) -> int:
    """Offset of the first record in (past, until) that has a key, -1 where none has."""
    probe = _FirstKey(past)
    with dispatcher.aside(max(past, dispatcher.log.min_offset)):
        while probe.found < 0 and dispatcher.step(until, False, DispatchTargets(None, probe)):
            pass
    return probe.found


def _fault(file: IndexFile, log_end: int) -> str:
    """The problem found in a file, empty for none."""
    header = file.header
    if not 1 <= header.index_count <= file.entries:
        return f"has an entry count of {header.index_count}"
    if not 0 <= header.begin_phy <= header.end_phy < max(log_end, 1):
        return f"covers the log from {header.begin_phy} to {header.end_phy}"
    if header.index_count == 1:
        return ""
    first = kernel.HEADER_BYTES + file.slots * kernel.SLOT_BYTES
    slots = file.file.memory[kernel.HEADER_BYTES : first].view(">i4")
    used = np.flatnonzero(slots)
    if len(used) != header.slot_count:
        return f"has {len(used)} slots in use, its header says {header.slot_count}"
    if len(used) and not 0 < int(slots.min()) + 1 <= int(slots.max()) + 1 <= header.index_count:
        return "has slots that name entries that do not exist"
    table = file.file.memory[first : first + header.index_count * kernel.ENTRY_BYTES]
    return _fault_of_entries(file, table.reshape(-1, kernel.ENTRY_BYTES), used)


def _fault_of_entries(file: IndexFile, table: U8, used: I64) -> str:
    header = file.header
    slots = file.file.memory[kernel.HEADER_BYTES :][: file.slots * kernel.SLOT_BYTES].view(">i4")
    heads = used[:: max(1, len(used) // SAMPLE)]
    if (_field(table, slots[heads], 0, ">u4") % file.slots != heads).any():
        return "has slots that name entries of another hash"
    sample = np.arange(1, len(table), max(1, len(table) // SAMPLE))
    previous = _field(table, sample, 16, ">i4")
    offsets = _field(table, sample, 4, ">i8")
    if (previous < 0).any() or (previous >= sample).any() or (np.diff(offsets) < 0).any():
        return "has entries out of order"
    if int(offsets[0]) < header.begin_phy or int(offsets[-1]) > header.end_phy:
        return "has entries of records outside the range in its header"
    return ""


def _field(table: U8, rows: I64, at: int, kind: str) -> I64:
    """One field of some entries."""
    width = np.dtype(kind).itemsize
    return np.ascontiguousarray(table[rows, at : at + width]).view(kind).ravel().astype(np.int64)


# The sizes of index files that are there: how many slots and entries they were made with.
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
