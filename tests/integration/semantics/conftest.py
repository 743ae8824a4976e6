"""One long-lived cluster per protocol for all tests, because TensorFlow starts slowly."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from tensorflow.python.client.session import BaseSession

from tensorwire.bench.lab.ports import PortLease

from .support import PROTOCOLS, ClusterPool, TensorFlowCluster, tf1

JOBS = {"ps": 1, "worker": 2}
# TensorFlow's default log level, because tests look for unwanted lines.
LOG_EVERYTHING = {"TF_CPP_MIN_LOG_LEVEL": "0"}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the last lines of the tasks' logs to a failed test: the logs are removed later."""
    report = yield
    if call.when == "call" and report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, TensorFlowCluster):
                for task, process in value.tasks.items():
                    report.sections.append((f"end of {name}'s {task}", process.tail(20)))
    return report


@pytest.fixture(scope="session")
def pool() -> Iterator[ClusterPool]:
    with ClusterPool() as pool:
        yield pool


@pytest.fixture(autouse=True)
def shared_tasks_live_on(pool: ClusterPool) -> Iterator[None]:
    """Fails the test after which a task of a shared cluster has ended; the next gets a new one."""
    yield
    if dead := pool.drop_dead():
        pytest.fail("\n".join(dead))


@pytest.fixture(autouse=True)
def no_session_stays_open() -> Iterator[None]:
    """Fails the test that leaves a session open. To close it without its master takes as long as a
    step may take, whenever Python gets to it.
    """
    opened: weakref.WeakSet[Any] = weakref.WeakSet()
    init = BaseSession.__init__

    def noted(session: Any, *arguments: Any, **options: Any) -> None:
        init(session, *arguments, **options)
        opened.add(session)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaseSession, "__init__", noted)
        yield
    if left := [session._target for session in opened if not session._closed]:
        pytest.fail(f"{len(left)} sessions were left open: {left}")


@pytest.fixture
def grpc_cluster(pool: ClusterPool) -> TensorFlowCluster:
    """The reference cluster, on gRPC."""
    return pool.get("grpc", JOBS, LOG_EVERYTHING)


@pytest.fixture
def wire_cluster(plugin: None, pool: ClusterPool) -> TensorFlowCluster:
    """The same cluster on grpc++."""
    return pool.get("grpc++", JOBS, LOG_EVERYTHING)


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "grpc++":
        request.getfixturevalue("plugin")
    return name


@pytest.fixture
def cluster(protocol: str, request: pytest.FixtureRequest) -> TensorFlowCluster:
    """ps:0, worker:0 and worker:1 of the protocol, shared with other tests: see ClusterPool."""
    fixture = "grpc_cluster" if protocol == "grpc" else "wire_cluster"
    shared: TensorFlowCluster = request.getfixturevalue(fixture)
    return shared


@pytest.fixture
def grpc_plugin_cluster(plugin: None, pool: ClusterPool) -> TensorFlowCluster:
    """A cluster on grpc with the plug-in loaded, for tensor fusion."""
    return pool.get("grpc", JOBS, LOG_EVERYTHING, plugin=True)


@pytest.fixture
def fusing_cluster(protocol: str, request: pytest.FixtureRequest) -> TensorFlowCluster:
    """Like `cluster`, with tensors fused in the sessions that ask for it."""
    fixture = "grpc_plugin_cluster" if protocol == "grpc" else "wire_cluster"
    shared: TensorFlowCluster = request.getfixturevalue(fixture)
    return shared


@pytest.fixture
def client_address() -> Iterator[str]:
    """An address whose port and data port are both free."""
    lease = PortLease()
    yield f"127.0.0.1:{lease.take()}"
    lease.release()


@pytest.fixture(params=["v1", "v2"])
def control_flow(request: pytest.FixtureRequest) -> Iterator[str]:
    """Selects TensorFlow 1's Switch and Merge, or TensorFlow 2's functional operations."""
    was_v2 = tf1.control_flow_v2_enabled()
    (tf1.enable_control_flow_v2 if request.param == "v2" else tf1.disable_control_flow_v2)()
    yield request.param
    (tf1.enable_control_flow_v2 if was_v2 else tf1.disable_control_flow_v2)()
