"""What the kernel of this machine tells."""

from __future__ import annotations

from tensorwire.bench.experiments import train as traffic


def counts_bytes() -> bool:
    """Whether it counts the bytes of connections; some container sandboxes refuse."""
    try:
        traffic.received_bytes([])
    except traffic.TrafficUnavailable:
        return False
    return True
