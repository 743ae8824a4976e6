"""Forwards packets between the hosts of a lab and its switch, and drops or delays some of them.

`relay.py SWITCH HOST…`: each argument is the path of a network namespace. A host gets an interface
`link0`, and the switch gets `host0`, `host1` and so on; packets are forwarded between them. Each
line of standard input is JSON, {"host": its number, "loss", "delay_s", "late", "late_s"}, and is
answered with an empty line. The first empty line means that the interfaces exist. They disappear
when this process ends, at the end of its input. A stand-alone script that uses only the standard
library.

Needed because not every kernel has netem.
"""

import contextlib
import ctypes
import fcntl
import heapq
import json
import os
import random
import selectors
import struct
import sys
import time

_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_FRAME_BYTES = 65536
_FRAMES_AT_ONCE = 64
_MOST_HELD = 20_000
"""Limit of packets in flight; further packets are dropped."""


class Link:
    """Both ends of a host's link, and its settings in each direction."""

    def __init__(self, host_end: int, switch_end: int) -> None:
        self.ends = (host_end, switch_end)
        self.loss = 0.0
        self.delay_s = 0.0
        self.late = 0.0
        self.late_s = 0.0

    def set(self, message: dict[str, float]) -> None:
        self.loss, self.delay_s = message["loss"], message["delay_s"]
        self.late, self.late_s = message["late"], message["late_s"]


class Relay:
    """Receives packets, and holds those that wait."""

    def __init__(self, links: list[Link], seed: int) -> None:
        self._links = links
        self._random = random.Random(seed)
        self._held: list[tuple[float, int, int, bytes]] = []
        self._count = 0
        self._selector = selectors.DefaultSelector()
        for link in links:
            for source, sink in (link.ends, link.ends[::-1]):
                self._selector.register(source, selectors.EVENT_READ, (link, sink))
        self._selector.register(0, selectors.EVENT_READ)

    def run(self) -> None:
        """Forwards packets until standard input ends."""
        while True:
            wait_s = max(0.0, self._held[0][0] - time.monotonic()) if self._held else None
            for key, _ in self._selector.select(wait_s):
                if key.data is None:
                    if not self._obey():
                        return
                else:
                    self._carry(key.fd, *key.data)
            now = time.monotonic()
            while self._held and self._held[0][0] <= now:
                _, _, sink, frame = heapq.heappop(self._held)
                _write(sink, frame)

    def _obey(self) -> bool:
        # The sender waits for each answer, so there is at most one line.
        line = os.read(0, 65536)
        if not line:
            return False
        for link in self._links:  # earlier packets are treated with the old settings
            for source, sink in (link.ends, link.ends[::-1]):
                while self._carry(source, link, sink):
                    pass
        message = json.loads(line)
        self._links[message["host"]].set(message)
        os.write(1, b"\n")
        return True

    def _carry(self, source: int, link: Link, sink: int) -> bool:
        """Forwards one packet; returns whether there may be more."""
        for _ in range(_FRAMES_AT_ONCE):
            try:
                frame = os.read(source, _FRAME_BYTES)
            except BlockingIOError:
                return False
            if link.loss and self._random.random() < link.loss:
                continue
            delay_s = link.delay_s
            if link.late and self._random.random() < link.late:
                delay_s += link.late_s
            if not delay_s:
                _write(sink, frame)
            elif len(self._held) < _MOST_HELD:
                self._count += 1  # keeps the order of frames that are due at the same time
                due = time.monotonic() + delay_s
                heapq.heappush(self._held, (due, self._count, sink, frame))
        return True


def _write(sink: int, frame: bytes) -> None:
    with contextlib.suppress(OSError):  # lost: its queue is full, or its interface is down
        os.write(sink, frame)


def _tap(libc: ctypes.CDLL, namespace: int, name: str) -> int:
    if libc.setns(namespace, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter a host of the lab")
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    request = struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI)
    fcntl.ioctl(tap, _TUNSETIFF, request)
    return tap


def main(switch: str, hosts: list[str]) -> None:
    # Open all before entering the first, because paths may mean something else inside.
    of_switch = os.open(switch, os.O_RDONLY)
    of_hosts = [os.open(host, os.O_RDONLY) for host in hosts]
    libc = ctypes.CDLL(None, use_errno=True)
    links = [
        Link(_tap(libc, namespace, "link0"), _tap(libc, of_switch, f"host{index}"))
        for index, namespace in enumerate(of_hosts)
    ]
    os.write(1, b"\n")
    Relay(links, seed=0).run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
