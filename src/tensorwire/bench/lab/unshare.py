"""Makes the namespaces of one host, and waits: `unshare.py HOSTNAME CONGESTION_CONTROL`.

Standard input has the host's /etc/hosts, ended by a zero byte. The answer is a line of JSON,
{"names": true or the reason why they do not resolve} or {"error": text}. The process then waits for
the end of its input, while its starter opens the namespaces under /proc. A stand-alone script that
uses only the standard library, because the process must have one thread.
"""

import ctypes
import json
import os
import sys
from pathlib import Path

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWNET = 0x00020000, 0x04000000, 0x40000000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000
_MNT_DETACH = 2
KINDS = ("net", "uts", "mnt")
"""The namespaces that are made, as /proc/PID/ns names them, in the order to enter them."""


class _Kernel:
    """System calls that the standard library lacks, or has only since Python 3.12."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)

    def __call__(self, name: str, *arguments: object) -> None:
        if getattr(self._libc, name)(*arguments) != 0:
            code = ctypes.get_errno()
            raise OSError(code, f"{name}: {os.strerror(code)}")


def _resolve(kernel: _Kernel, hosts: bytes) -> None:
    """Replaces /etc/hosts by `hosts`, for this mount namespace only.

    The file is on a tmpfs that is unmounted from its path afterwards, so it disappears with the
    namespace.
    """
    kernel("mount", b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None)
    kernel("mount", b"tmpfs", b"/tmp", b"tmpfs", ctypes.c_ulong(0), b"size=1m")
    try:
        Path("/tmp/hosts").write_bytes(hosts)
        kernel("mount", b"/tmp/hosts", b"/etc/hosts", None, ctypes.c_ulong(_MS_BIND), None)
    finally:
        kernel("umount2", b"/tmp", _MNT_DETACH)


def _make(hostname: str, congestion_control: str, hosts: bytes) -> dict[str, object]:
    kernel = _Kernel()
    try:
        kernel("unshare", _CLONE_NEWNET | _CLONE_NEWUTS | _CLONE_NEWNS)
        kernel("sethostname", hostname.encode(), len(hostname))
        Path("/proc/sys/net/ipv4/tcp_congestion_control").write_text(congestion_control)
    except OSError as error:
        return {"error": str(error.strerror)}
    try:
        _resolve(kernel, hosts)
    except OSError as error:
        return {"names": str(error.strerror)}
    return {"names": True}


def main(hostname: str, congestion_control: str) -> None:
    hosts = b""
    while not hosts.endswith(b"\0"):
        data = os.read(0, 65536)
        if not data:
            return
        hosts += data
    answer = _make(hostname, congestion_control, hosts[:-1])
    os.write(1, json.dumps(answer).encode() + b"\n")
    os.read(0, 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
