"""Digests of what a build depends on."""

from __future__ import annotations

import hashlib


def digest(*parts: str | bytes) -> str:
    """A digest of `parts` in their order: 16 hexadecimal digits of SHA-256."""
    sha = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        sha.update(len(data).to_bytes(8, "little"))
        sha.update(data)
    return sha.hexdigest()[:16]
