"""Tasks that an agent starts for the leader; here both are on this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tensorwire.bench.experiments.tcp import TcpTask, baselines
from tensorwire.bench.experiments.tensors import one_tensor
from tensorwire.bench.frame import several_hosts
from tensorwire.bench.frame.several_hosts import HostRole
from tensorwire.bench.frame.tasks import TaskProcesses, Unwatched
from tensorwire.bench.lab.ports import PortLease
from tensorwire.errors import TensorwireError


@pytest.fixture
def addresses() -> Iterator[dict[str, list[str]]]:
    lease = PortLease()
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(lease.release)
        yield {job: [f"127.0.0.1:{lease.take(in_a_row=3)}"] for job in ("ps", "worker")}


@pytest.fixture
def elsewhere() -> Iterator[Callable[..., Future[None]]]:
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit


def test_a_task_of_the_other_host_is_used_like_one_of_this(
    addresses: dict[str, list[str]], elsewhere: Callable[..., Future[None]]
) -> None:
    ps, worker = (HostRole("bench transfer", addresses, job, 0, 60) for job in ("ps", "worker"))
    agent = elsewhere(several_hosts.serve, ps, Unwatched())
    with several_hosts.lead(worker, Unwatched()) as host_pool:
        assert host_pool.have_link
        assert not host_pool.is_this_machine
        (side,) = baselines(one_tensor(100_000), host_pool)
        with side:
            side.wait_started(Unwatched())
            assert len(side.block(one_tensor(100_000), 3)) == 3
    agent.result(30)


def test_what_goes_wrong_at_the_other_host_is_said_at_both(
    addresses: dict[str, list[str]], elsewhere: Callable[..., Future[None]]
) -> None:
    ps, worker = (HostRole("bench transfer", addresses, job, 0, 60) for job in ("ps", "worker"))
    agent = elsewhere(several_hosts.serve, ps, Unwatched())
    with (
        pytest.raises(TensorwireError, match=r"ps:0 ended with exit status 1(?s:.*)no_such_part"),
        several_hosts.lead(worker, Unwatched()) as host_pool,
        TaskProcesses(host_pool.cluster({"ps": 1})) as tasks,
    ):
        tasks.start_task("ps", TcpTask, no_such_part=1)
        tasks.wait_started(Unwatched())
    with pytest.raises(TensorwireError, match=r"ps:0 ended with exit status 1(?s:.*)no_such_part"):
        agent.result(30)


def test_an_agent_at_another_tasks_address_is_refused(
    addresses: dict[str, list[str]], elsewhere: Callable[..., Future[None]]
) -> None:
    of_ps, of_worker = addresses["ps"], addresses["worker"]
    leader = HostRole("bench transfer", {"ps": of_ps, "worker": of_worker}, "worker", 0, 60)
    swapped = HostRole("bench transfer", {"ps": of_worker, "worker": of_ps}, "worker", 0, 60)
    agent = elsewhere(several_hosts.serve, swapped, Unwatched())
    with (
        pytest.raises(TensorwireError, match="is worker:0, not ps:0"),
        several_hosts.lead(leader, Unwatched()),
    ):
        pass
    with pytest.raises(TensorwireError, match="ended before it was done"):
        agent.result(30)
