"""The life of a ps: as long as a Job that decides needs it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s_double.api_server import ApiServer
from k8s_double.jobs import job, manifests
from tensorwire.k8s.keeper import Deciders, wait


def listed(**conditions: str | None) -> list[dict[str, Any]]:
    return [
        {
            "metadata": {"name": name},
            "status": {"conditions": [{"type": kind, "status": "True"}] if kind else None},
        }
        for name, kind in conditions.items()
    ]


@pytest.mark.parametrize(
    ("seen", "needed"),
    [
        ([listed()], True),
        ([listed(a=None)], True),
        ([listed(a=None, b=None)], True),
        ([listed(a="Complete", b=None)], True),
        ([listed(a="Complete")], True),
        ([listed(a="Complete", b="Complete")], False),
        ([listed(a="Failed", b=None)], False),
        ([listed(a="SuccessCriteriaMet", b=None)], True),
        ([listed(a=None, b=None), listed(b=None)], True),
        ([listed(a=None, b=None), listed(b="Complete")], False),
        ([listed(a=None, b=None), listed()], False),
    ],
)
def test_a_ps_is_needed_until_all_that_decide_have_ended(
    seen: list[list[dict[str, Any]]], needed: bool
) -> None:
    deciders = Deciders(expected=2)
    answers = [deciders.need_us(jobs) for jobs in seen]
    assert answers == [True] * (len(seen) - 1) + [needed]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[ApiServer, str]]:
    api = ApiServer()
    with api.serve(tmp_path) as kubeconfig:
        (tmp_path / "token").write_text("secret")
        config = yaml.safe_load(kubeconfig.read_text())
        yield api, config["clusters"][0]["cluster"]["server"]


def start(tmp_path: Path, url: str) -> threading.Thread:
    options = {"account": tmp_path, "interval_s": 0.01}
    thread = threading.Thread(
        target=wait, args=(url, "default", "flights", 2), kwargs=options, daemon=True
    )
    thread.start()
    return thread


def submit(api: ApiServer) -> None:
    with api.lock:
        for each in manifests(job(4, 2)):
            if each["kind"] == "Job":
                api.create_or_apply(("jobs", "default", each["metadata"]["name"]), each)


def test_it_asks_the_api_server_and_ends_with_the_job(
    server: tuple[ApiServer, str], tmp_path: Path
) -> None:
    api, url = server
    submit(api)
    thread = start(tmp_path, url)
    with api.lock:
        api.end_job("flights-worker-0", "Complete")
    thread.join(0.2)
    assert thread.is_alive()
    with api.lock:
        api.end_job("flights-worker-1", "Complete")
    thread.join(30)
    assert not thread.is_alive()


def test_it_goes_on_while_it_may_not_see_the_job_and_says_so_once(
    server: tuple[ApiServer, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    api, url = server
    submit(api)
    api.forbidden.add(("list", "jobs"))
    thread = start(tmp_path, url)
    thread.join(0.3)
    assert thread.is_alive()
    with api.lock:
        api.forbidden.clear()
        api.end_job("flights-worker-0", "Failed")
    thread.join(30)
    assert not thread.is_alive()
    said = capfd.readouterr().err
    assert said.count("must be allowed to list jobs") == 1
