"""Short names for what a build depends on."""

from __future__ import annotations

import hashlib


def digest(*parts: str | bytes) -> str:
    """A short name for all of `parts`, in their order."""
    sha = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        sha.update(len(data).to_bytes(8, "little"))
        sha.update(data)
    return sha.hexdigest()[:16]
