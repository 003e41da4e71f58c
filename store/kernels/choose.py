"""Some messages of a read: those with certain tags, and the columns without the others."""

import numpy as np

from store.kernels.jit import I64, U8, i64, kernel, ro_i64s, ro_u8s, u8s
from store.kernels.text import FOUND, find_well_known


@kernel(i64, ro_u8s, ro_i64s, ro_u8s, ro_i64s, u8s)
def tagged(properties: U8, ends: I64, tags: U8, tag_ends: I64, keep: U8) -> int:
    """Set keep[k] to 1 where message k's TAGS is one of some texts, else to 0; how many are kept.

    ends: where each message's property text ends; tag_ends: where each wanted text does.
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
    """Copy the pieces of a blob that are kept, one behind the other; the bytes copied."""
    start = np.int64(0)
    filled = np.int64(0)
    for k in range(len(ends)):
        length = ends[k] - start
        if keep[k] == 1:
            out[filled : filled + length] = data[start : ends[k]]
            filled += length
        start = ends[k]
    return filled
