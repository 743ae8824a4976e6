"""A small, fast JSON client for the local API server, for the kubelet's frequent requests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3

Object = dict[str, Any]

MERGE = "application/merge-patch+json"
STRATEGIC_MERGE = "application/strategic-merge-patch+json"

NO_ANSWER = urllib3.exceptions.HTTPError
"""The exception of a request without an answer."""


class Refused(Exception):
    """An unsuccessful answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """The API server, accessed as one user."""

    def __init__(self, server: str, token: str, authority: Path) -> None:
        self._server = server
        self._pool = urllib3.PoolManager(
            ca_certs=str(authority),
            headers={"Authorization": f"Bearer {token}"},
            timeout=urllib3.Timeout(connect=2.0, read=20.0),
            retries=False,
            maxsize=4,
        )

    def get(self, path: str, **query: str) -> Object:
        """The object at `path`. Raises Refused or NO_ANSWER, as all methods do."""
        return self._ask("GET", f"{path}?{urlencode(query)}" if query else path)

    def items(self, path: str, **query: str) -> list[Object]:
        """The objects of a list, from the API server's cache."""
        return list(self.get(path, resourceVersion="0", **query)["items"])

    def create(self, path: str, body: Mapping[str, Any]) -> Object:
        return self._ask("POST", path, body)

    def patch(self, path: str, body: Mapping[str, Any], kind: str = MERGE) -> Object:
        return self._ask("PATCH", path, body, kind)

    def delete(self, path: str, body: Mapping[str, Any] | None = None) -> Object:
        return self._ask("DELETE", path, body)

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        kind: str = "application/json",
    ) -> Object:
        headers = dict(self._pool.headers) | {"Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        answer = self._pool.request(method, self._server + path, body=data, headers=headers)
        if answer.status >= 300:
            try:
                message = str(json.loads(answer.data)["message"])
            except (ValueError, KeyError, TypeError):
                message = answer.data.decode(errors="replace")[:300]
            raise Refused(answer.status, message)
        return dict(json.loads(answer.data))
