"""A cluster that is an API server, named by the kubeconfig."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from k8s_double.api_server import ApiServer


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    server = ApiServer()
    with server.serve(tmp_path) as kubeconfig:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        yield server
