"""Tasks, addresses, TF_CONFIG and `.endpoint_map`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tensorwire.cluster import (
    ClusterSpec,
    Task,
    data_addresses,
    data_port,
    is_ps,
    parse_tf_config,
    read_endpoint_map,
    split_address,
)
from tensorwire.errors import UsageError


@pytest.mark.parametrize(
    ("grpc_port", "expected"),
    [(2222, 22222), (45535, 65535), (45536, 1024), (65535, 21023), (1024, 21024)],
)
def test_data_port_is_20000_above_and_wraps_to_1024(grpc_port: int, expected: int) -> None:
    assert data_port(grpc_port) == expected


def test_tasks_of_a_host_never_share_a_data_port() -> None:
    ports = {data_port(port) for port in range(1024, 65536)}
    assert len(ports) == 65536 - 1024
    assert min(ports) == 1024
    assert max(ports) == 65535


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_what_is_no_port_has_no_data_port(port: int) -> None:
    with pytest.raises(UsageError, match=str(port)):
        data_port(port)


def test_addresses_are_split_with_ipv6_in_brackets() -> None:
    assert split_address("host1:2222") == ("host1", 2222)
    assert split_address("[::1]:2222") == ("::1", 2222)
    assert data_addresses("[::1]:2222") == ["[::1]:22222"]
    assert data_addresses("host:30000") == ["host:50000", "host:18256"]


@pytest.mark.parametrize("address", ["host", "host:", ":22", "host:0", "host:70000", "::1:22", ""])
def test_a_wrong_address_is_named_and_the_form_shown(address: str) -> None:
    with pytest.raises(UsageError, match="host:port") as caught:
        split_address(address)
    assert f'"{address}"' in str(caught.value)


def test_a_cluster_lists_its_tasks_in_order() -> None:
    cluster = ClusterSpec.from_hosts(ps="a:1, b:1", worker="c:1")
    assert list(cluster.tasks()) == [
        (Task("ps", 0), "a:1"),
        (Task("ps", 1), "b:1"),
        (Task("worker", 0), "c:1"),
    ]
    assert cluster.address(Task("ps", 1)) == "b:1"


def test_a_task_that_the_cluster_lacks_is_named_with_the_jobs_there_are() -> None:
    cluster = ClusterSpec.from_hosts(ps="a:1", worker="c:1,d:1")
    with pytest.raises(UsageError, match=r"/job:worker/task:2.*ps \(1\), worker \(2\)"):
        cluster.address(Task("worker", 2))


def test_two_tasks_with_one_address_are_refused() -> None:
    with pytest.raises(UsageError, match=r"/job:worker/task:0 and /job:ps/task:0 .* a:1"):
        ClusterSpec.from_hosts(ps="a:1", worker="a:1")


def test_tf_config_tells_cluster_and_task() -> None:
    config = parse_tf_config(
        json.dumps(
            {
                "cluster": {"chief": ["a:1"], "ps": ["b:1"], "worker": {"3": "c:1"}},
                "task": {"type": "ps", "index": "0"},
                "rpc_layer": "grpc++",
            }
        )
    )
    assert config is not None
    assert config.task == Task("ps", 0)
    assert dict(config.cluster.jobs) == {"chief": ("a:1",), "ps": ("b:1",), "worker": {3: "c:1"}}
    assert list(config.cluster.tasks())[-1] == (Task("worker", 3), "c:1")


def test_a_sparse_job_has_the_tasks_that_it_names_and_no_others() -> None:
    config = parse_tf_config(
        json.dumps(
            {
                "cluster": {"ps": ["b:1"], "worker": {"10": "k:1", "2": "c:1"}},
                "task": {"type": "worker", "index": 10},
            }
        )
    )
    assert config is not None and config.task is not None
    assert config.cluster.address(config.task) == "k:1"
    assert [str(task) for task, _ in config.cluster.tasks()] == [
        "/job:ps/task:0",
        "/job:worker/task:2",
        "/job:worker/task:10",
    ]
    with pytest.raises(UsageError, match=r"no /job:worker/task:0; .* worker \(2\)"):
        config.cluster.address(Task("worker", 0))


@pytest.mark.parametrize(
    "text", ["", "  ", "{}", '{"cluster": []}', '{"task": {"type": "worker", "index": 0}}']
)
def test_tf_config_without_a_cluster_is_none(text: str) -> None:
    assert parse_tf_config(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"cluster": {"ps": "a:1"}}',
        '{"cluster": {"ps": {"first": "a:1"}}}',
        '{"cluster": {"ps": {"-1": "a:1"}}}',
        '{"cluster": {"ps": ["a:1"]}, "task": {"index": 0}}',
        '{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": "x"}}',
    ],
)
def test_a_malformed_tf_config_shows_the_form(text: str) -> None:
    with pytest.raises(UsageError, match=r'TF_CONFIG.*"cluster": \{"ps": \["host:port"'):
        parse_tf_config(text)


def test_an_endpoint_map_is_read_past_comments_and_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / ".endpoint_map"
    path.write_text("# ours\n\n127.0.0.1:3333=127.0.0.1:5555\r\n  [::1]:1 = [::1]:2  \n")
    assert read_endpoint_map(path) == {"127.0.0.1:3333": "127.0.0.1:5555", "[::1]:1": "[::1]:2"}


@pytest.mark.parametrize(
    "line",
    [
        "127.0.0.1:3333",
        "127.0.0.1:3333=",
        "127.0.0.1=127.0.0.1:5555",
        "127.0.0.1:3333=127.0.0.1:99999",
        "127.0.0.1:1=127.0.0.1:5555",  # the same address as in the line before
    ],
)
def test_a_malformed_line_is_named_by_file_and_line_and_the_format_shown(
    tmp_path: Path, line: str
) -> None:
    path = tmp_path / ".endpoint_map"
    path.write_text(f"127.0.0.1:1=127.0.0.1:2\n{line}\n")
    with pytest.raises(UsageError, match="grpc_host:port=data_host:port") as caught:
        read_endpoint_map(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert "\n" not in str(caught.value)


def test_a_map_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_endpoint_map(tmp_path / "none")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not text"):
        read_endpoint_map(binary)


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("ps:0", True), ("/job:ps/replica:0/task:1", True), ("/job:params/task:0", True),
        ("/job:ps", True), ("worker:0", False), ("chief:0", False), ("/job:master/task:0", False),
        ("/job:evaluator/task:0", False), ("/job:localhost/replica:0", False), ("pid 12", False),
        ("", False), ("/device:CPU:0", False),
    ],
)  # fmt: skip
def test_every_job_that_does_not_train_is_a_ps(task: str, expected: bool) -> None:
    assert is_ps(task) is expected
