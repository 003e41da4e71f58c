"""What the kernel drops of connections before gRPC's core reads it: bounds that hold at once.

The core reads what comes as fast as it comes, some 100 KB in a ms, and a node cannot look as often.
So the kernel bounds those who are not trusted, by a filter of a socket (BPF's classic form, which
anybody may use): what is dropped is sent again by the peer's TCP, after 0.2 s at first. A listening
socket's filter is that of the connections it makes from then on.
"""

import ctypes
import errno
import socket
import struct
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, ip_network

_ATTACH_FILTER, _DETACH_FILTER = 26, 27  # of Linux's asm-generic/socket.h
_SAVE_SYN, _SAVED_SYN = 27, 28  # of linux/tcp.h
_SYN_BYTES = 256  # headers of IP and TCP
_TCP, _TCP6 = 20, 40  # bytes of the headers of IP: at least, and always
_SEQUENCE_AT = 4  # of the header of TCP
_PROGRAM = struct.Struct("@HP")

# Instructions of BPF: what is loaded at an offset is that of the header of TCP.
_LOAD_BYTE, _LOAD_WORD, _LOAD_LENGTH, _LENGTH_INTO_X = 0x30, 0x20, 0x80, 0x07
_AND, _SHIFT_RIGHT, _SUBTRACT = 0x54, 0x74, 0x14
_IF_EQUAL, _IF_EQUAL_X, _IF_AT_LEAST, _RETURN = 0x15, 0x1D, 0x35, 0x06
_OF_IP = 0xFFF00000  # an offset within the header of IP
_SOURCE, _SOURCE6 = _OF_IP + 12, _OF_IP + 8


def _instruction(code: int, value: int = 0, if_true: int = 0, if_false: int = 0) -> bytes:
    """if_true, if_false: instructions that are left out."""
    return struct.pack("=HBBI", code, if_true, if_false, value & 0xFFFFFFFF)


_PASS, _DROP = _instruction(_RETURN, 0xFFFFFFFF), _instruction(_RETURN, 0)
# Segments without data, such as those of the handshake, and acknowledgements.
_PASS_EMPTY = (
    _instruction(_LOAD_BYTE, 12),
    _instruction(_AND, 0xF0),
    _instruction(_SHIFT_RIGHT, 2),
    _instruction(_LENGTH_INTO_X),
    _instruction(_LOAD_LENGTH),
    _instruction(_IF_EQUAL_X, if_false=1),
    _PASS,
)


def remember(listener: socket.socket) -> None:
    """Let each connection know what its client's first byte is numbered. Raises OSError."""
    listener.setsockopt(socket.IPPROTO_TCP, _SAVE_SYN, 1)


def hold(listener: socket.socket, networks: Iterable[str]) -> int:
    """Drop all data of new connections from these networks, until one is bound or set free; how
    many of them. networks: see network_of; the last ones are left out where the system has too
    little memory for all (`net.core.optmem_max`, 20 KiB before Linux 6.7). Raises OSError.
    """
    left = list(networks)
    while True:
        try:
            _attach(listener, _holding(left))
            return len(left)
        except OSError as error:
            if error.errno != errno.ENOMEM or not left:
                raise
        try:
            free(listener)  # the program that would be replaced takes as much
        except OSError:  # there was none
            del left[len(left) // 2 :]


def _holding(networks: Iterable[str]) -> list[bytes]:
    of_4, of_6 = [], []
    for one in networks:
        found = ip_network(one)
        if isinstance(found.network_address, IPv4Address):
            of_4.append(int(found.network_address))
        else:
            of_6.append(divmod(int(found.network_address) >> 64, 1 << 32))
    program = list(_PASS_EMPTY)
    # A word of an IPv6 header is never taken for an IPv4 address, nor the other way: their
    # versions are looked at first. Jumps are short, so each comparison drops by itself.
    program += (_instruction(_LOAD_BYTE, _OF_IP), _instruction(_SHIFT_RIGHT, 4))
    program += (_instruction(_IF_EQUAL, 4, if_false=1), _jump(1), _jump(2 + 2 * len(of_4)))
    program.append(_instruction(_LOAD_WORD, _SOURCE))
    for word in of_4:
        program += (_instruction(_IF_EQUAL, word, if_false=1), _DROP)
    program.append(_PASS)
    for high, low in of_6:
        program += (
            _instruction(_LOAD_WORD, _SOURCE6),
            _instruction(_IF_EQUAL, high, if_false=3),
            _instruction(_LOAD_WORD, _SOURCE6 + 4),
            _instruction(_IF_EQUAL, low, if_false=1),
            _DROP,
        )
    program.append(_PASS)
    return program


def bound(line: socket.socket, bytes_max: int) -> None:
    """Drop what begins beyond so many bytes of a connection's client. Raises OSError, as where its
    listener was not told to remember, or it was bound before.
    """
    syn = line.getsockopt(socket.IPPROTO_TCP, _SAVED_SYN, _SYN_BYTES)
    at = _SEQUENCE_AT + (_TCP6 if syn[:1] >= b"\x60" else max(_TCP, (syn[:1] or b"\0")[0] % 16 * 4))
    if len(syn) < at + 4:
        raise OSError("the system tells nothing of a connection's beginning")
    (first,) = struct.unpack_from(">I", syn, at)
    program = [
        *_PASS_EMPTY,
        _instruction(_LOAD_WORD, _SEQUENCE_AT),
        _instruction(_SUBTRACT, first + 1),
        _instruction(_IF_AT_LEAST, bytes_max, if_false=1),
        _DROP,
        _PASS,
    ]
    _attach(line, program)


def free(line: socket.socket) -> None:
    """Drop nothing, neither of new connections. Raises OSError, as where nothing was dropped."""
    line.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)


def _jump(count: int) -> bytes:
    return _instruction(0x05, count)


def _attach(line: socket.socket, program: Sequence[bytes]) -> None:
    data = ctypes.create_string_buffer(b"".join(program))
    line.setsockopt(
        socket.SOL_SOCKET, _ATTACH_FILTER, _PROGRAM.pack(len(program), ctypes.addressof(data))
    )


__all__ = ["bound", "free", "hold", "remember"]
