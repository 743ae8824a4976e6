"""The hosts of tasks in a lab."""

from __future__ import annotations

import sys

import pytest

from tensorwire.bench.frame.hosts import SERVING_JOBS, lab_notes, open_host_pool, spread
from tensorwire.bench.lab import Host, HostSettings, LabSettings
from tensorwire.bench.lab.settings import parse
from tensorwire.errors import UsageError


def placed(hosts: int, **jobs: int) -> dict[str, list[str]]:
    names = [Host(f"198.18.0.{i + 1}", f"h{i}") for i in range(hosts)]
    return {job: [host.name for host in of] for job, of in spread(names, jobs).items()}


def test_both_ends_of_a_pair_have_a_host_of_their_own() -> None:
    assert placed(2, ps=1, worker=1) == {"ps": ["h0"], "worker": ["h1"]}
    assert placed(5, server=1, client=1)["server"] != placed(5, server=1, client=1)["client"]


def test_tasks_are_dealt_out_over_the_hosts_of_their_end() -> None:
    assert placed(2, ps=2, worker=2) == {"ps": ["h0", "h0"], "worker": ["h1", "h1"]}
    assert placed(4, ps=2, worker=3) == {"ps": ["h0", "h1"], "worker": ["h2", "h3", "h2"]}
    assert placed(3, ps=1, worker=1, chief=1) == {"ps": ["h0"], "worker": ["h1"], "chief": ["h2"]}


@pytest.mark.parametrize("hosts", [2, 3, 7])
@pytest.mark.parametrize("ps", [1, 2, 9])
@pytest.mark.parametrize("workers", [1, 5])
def test_no_host_has_tasks_of_both_ends(hosts: int, ps: int, workers: int) -> None:
    jobs = placed(hosts, ps=ps, worker=workers)
    assert "ps" in SERVING_JOBS
    assert not set(jobs["ps"]) & set(jobs["worker"])


def test_one_host_has_all() -> None:
    assert placed(1, ps=1, worker=1) == {"ps": ["h0"], "worker": ["h0"]}


def test_a_record_says_where_it_was_made_and_what_is_not_so() -> None:
    lab = {**parse("hosts=2,rate=10gbit,delay=50us,cpus=0.5").document(), "network": True}
    assert lab_notes({**lab, "notes": ["the delay is not applied"]}) == [
        "measured between the hosts of a lab: 2 hosts, 10000 Mbit/s, 50 us of delay, 0.5 CPUs each",
        "the delay is not applied",
    ]
    unlike = LabSettings((HostSettings(1e9), HostSettings())).document()
    assert "2 hosts, 1000/- Mbit/s" in lab_notes({**unlike, "network": True, "notes": []})[0]
    # Without a network, the requested rate was not measured.
    assert lab_notes({**lab, "network": False, "notes": ["loopback"]}) == ["loopback"]
    assert lab_notes(None) == []


def test_a_lab_that_this_machine_cannot_make_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyroute2", None)
    with (
        pytest.raises(UsageError, match=r"the lab of --lab: .* pip install 'tensorwire\[bench\]'"),
        open_host_pool(parse("hosts=2,rate=1gbit")),
    ):
        pass
