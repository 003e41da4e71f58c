"""Filtering of a read: which messages have certain tags, and columns of these messages only."""

import numpy as np

from duolog_server.store.kernels.jit import I64, U8, i64, kernel, ro_i64s, ro_u8s, u8s
from duolog_server.store.kernels.text import FOUND, find_well_known


@kernel(i64, ro_u8s, ro_i64s, ro_u8s, ro_i64s, u8s)
def tagged(properties: U8, ends: I64, tags: U8, tag_ends: I64, keep: U8) -> int:
    """Set keep[k] to 1 if TAGS of message k is a wanted text, else to 0; return how many are kept.

    ends: end of each message's property text. tag_ends: end of each wanted text.
    """
    found = np.empty(FOUND, np.int64)
    start = np.int64(0)
    kept = np.int64(0)
    for k in range(len(ends)):
        find_well_known(properties, start, ends[k], found)
        start = ends[k]
        keep[k] = 0
        tag_start = np.int64(0)
        for j in range(len(tag_ends)):
            length = tag_ends[j] - tag_start
            same = length == found[1]
            at = 0
            while same and at < length:
                same = tags[tag_start + at] == properties[found[0] + at]
                at += 1
            tag_start = tag_ends[j]
            if same:
                keep[k] = 1
                kept += 1
                break
    return kept


@kernel(i64, ro_u8s, ro_i64s, ro_u8s, u8s)
def gather(data: U8, ends: I64, keep: U8, out: U8) -> int:
    """Copy the kept pieces of a blob, one after the other; return the number of bytes copied."""
    start = np.int64(0)
    filled = np.int64(0)
    for k in range(len(ends)):
        length = ends[k] - start
        if keep[k] == 1:
            out[filled : filled + length] = data[start : ends[k]]
            filled += length
        start = ends[k]
    return filled
