"""The bytes that TCP carried for given ports of this machine, from the kernel's counters.

The kernel counts the payload of each connection. So traffic of gRPC, which has no counters of its
own, is measured as that of any other transport, without the traffic of other programs.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Collection, Iterator
from pathlib import Path

# linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST_DUMP = 0x1 | 0x300
_NLMSG_ERROR = 2
_NLMSG_DONE = 3
_INET_DIAG_INFO = 2
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48x")
_PORTS = struct.Struct("!4xHH")
_MESSAGE_BYTES = 72
_ATTRIBUTE = struct.Struct("=HH")
_BYTES_RECEIVED = struct.Struct("=128xQ")  # tcp_info.tcpi_bytes_received

_ESTABLISHED = 1 << 1


class TrafficUnavailable(Exception):
    """The kernel does not report it; some container sandboxes refuse the request."""


def network() -> str:
    """The kernel and the network namespace whose connections this process sees."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/net').readlink()}"


def received_bytes(ports: Collection[int]) -> int:
    """Payload bytes received so far, at both ends, on this machine's established connections.

    Counts a connection if one of its ports is in ``ports``. With both ends on this machine, every
    byte is counted once. Closed connections are not counted, so compute differences only over
    periods in which no connection was closed.

    Raises TrafficUnavailable.
    """
    wanted = frozenset(ports)
    return sum(
        received
        for family in (socket.AF_INET, socket.AF_INET6)
        for local, remote, received in _connections(family)
        if local in wanted or remote in wanted
    )


def _connections(family: int) -> Iterator[tuple[int, int, int]]:
    """(local port, remote port, bytes received) of each established TCP connection."""
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), _ESTABLISHED)
    header = _HEADER.pack(
        _HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, 1, 0
    )
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as diag:
            diag.settimeout(5.0)
            diag.send(header + request)
            while True:
                data = diag.recv(1 << 18)
                offset = 0
                while offset + _HEADER.size <= len(data):
                    length, kind, _, _, _ = _HEADER.unpack_from(data, offset)
                    if kind == _NLMSG_DONE:
                        return
                    if kind == _NLMSG_ERROR or length < _HEADER.size:
                        code = struct.unpack_from("=i", data, offset + _HEADER.size)[0]
                        raise TrafficUnavailable(os.strerror(-code))
                    yield from _parse(data[offset + _HEADER.size : offset + length])
                    offset += (length + 3) & ~3
    except OSError as error:
        raise TrafficUnavailable(str(error)) from error


def _parse(message: bytes) -> Iterator[tuple[int, int, int]]:
    """The connection that an inet_diag_msg describes; nothing if it has no tcp_info."""
    local, remote = _PORTS.unpack_from(message)
    offset = _MESSAGE_BYTES
    while offset + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, offset)
        value = message[offset + _ATTRIBUTE.size : offset + length]
        if kind == _INET_DIAG_INFO and len(value) >= _BYTES_RECEIVED.size:
            yield local, remote, _BYTES_RECEIVED.unpack_from(value)[0]
            return
        offset += max(_ATTRIBUTE.size, (length + 3) & ~3)
