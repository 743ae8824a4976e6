"""What the kernel of this machine tells."""

from __future__ import annotations

from tensorwire.bench.experiments.train import received_bytes


def counts_bytes() -> bool:
    """Whether it counts the bytes of connections; some container sandboxes refuse."""
    return received_bytes([]) is not None
