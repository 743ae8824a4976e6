"""Wrong usage of `tensorwire bench`: status 2, one line, and no task is started."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from tensorwire.cli.main import main

TWO_HOSTS = ["--ps-hosts", "127.0.0.1:12222", "--worker-hosts", "127.0.0.1:12223"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stop:
        main(["bench", *arguments])
    return int(stop.value.code or 0), capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["transfer", "--data-mb", "0"], "at least one float"),
        (["transfer", "--data-mb", "-1"], "at least one float"),
        (["transfer", "--data-mb", "nan"], "at least one float"),
        (["transfer", "--data-mb", "inf"], "at least one float"),
        (["transfer", "--data-mb", "2500", "--protocols", "grpc"], "use --protocols grpc++"),
        (
            ["transfer", "--data-mb", "2500", "--protocols", "grpc,grpc++"],
            "messages are limited to 2 GB",
        ),
        (["transfer", "--protocols", "http"], "unknown protocol 'http'"),
        (["transfer", "--protocols", ","], "names no protocol"),
        (["transfer", "--protocols", "grpc,grpc"], "names a protocol twice"),
        (["transfer", "--transport", "pigeon"], "'pigeon' is not one of"),
        (["transfer", "--iters", "0"], "--iters"),
        (["transfer", "--rounds", "0"], "--rounds"),
        (["transfer", "--json", "/no/such/folder/record.json"], "there is no folder /no/such"),
        (["steps", "--report", "/no/such/folder/page.html"], "there is no folder /no/such"),
        (["transfer", "--job", "ps"], "--ps-hosts, --worker-hosts and --job"),
        (["transfer", *TWO_HOSTS], "--ps-hosts, --worker-hosts and --job"),
        (["transfer", *TWO_HOSTS, "--job", "ps", "--task", "1"], "--task 1"),
        (["transfer", *TWO_HOSTS, "--job", "ps", "--task", "-1"], "--task -1"),
        (["steps", *TWO_HOSTS, "--job", "ps", "--lab", "hosts=2"], "--lab makes hosts of its own"),
        (["train", *TWO_HOSTS, "--job", "worker", "--task", "1"], "--worker-hosts has 1"),
        (["serve", *TWO_HOSTS[:2], "--worker-hosts", "127.0.0.1:12222", "--job", "ps"], "same"),
        (["transfer", *TWO_HOSTS[:2], "--worker-hosts", "a:1,b:2", "--job", "ps"], "one ps and"),
        (["transfer", *TWO_HOSTS[:2], "--worker-hosts", "nowhere", "--job", "ps"], "nowhere"),
        (["transfer", "--lab", "hosts=2,rate=fast"], "rate=fast is not understood"),
        (["serve", "--lab", "hosts=1"], "from 2 to 64 hosts"),
        (["train", "--lab", "hosts=2", "--transport", "memory"], "share no memory"),
        (["steps", "--case", "huge"], "'huge' is not one of"),
        (["steps", "--protocols", "grpc+"], "unknown protocol 'grpc+'"),
        (["serve", "--clients", "0"], "--clients 0: give a number from 1"),
        (["serve", "--clients", "4", "--busy", "5"], "--busy 5: give a number from 1 to 4"),
        (["serve", "--clients", "16", "--requests", "100"], "give at least 160"),
        (["serve", "--message-size", "0"], "--message-size 0: give bytes from 1"),
        (["serve", "--payload", "lumpy"], "'lumpy' is not one of"),
        (["serve", "--in-flight", "0"], "--in-flight"),
        (["serve", "--tensor-fuse"], "--tensor-fuse"),
        (["rpc", "--message-size", "-1"], "--message-size -1: give bytes from 0"),
        (["rpc", "--message-size", "3000000000"], "give bytes from 0 to 2147483647"),
        (["rpc", "--concurrency", "2", "--channels", "3"], "leaves some of --channels 3 unused"),
        (["rpc", "--job", "client"], "--job client --target HOST:PORT"),
        (["rpc", "--target", "a:1"], "--job client --target HOST:PORT"),
        (["rpc", "--job", "client", "--target", "nowhere"], "nowhere"),
        (["rpc", "--job", "server", "--response-size", "1"], "--message-size is the size of"),
        (["tcp", "--streams", "1,x"], "--streams 1,x: give numbers"),
        (["tcp", "--streams", "0"], "numbers from 1 to"),
        (["tcp", "--streams", "2,2"], "names a number twice"),
        (["tcp", "--message-size", "0"], "--message-size 0: give bytes from 1"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    says: str,
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    status, err = run(capsys, *arguments)
    assert status == 2
    assert says in err
    assert err.startswith("tensorwire: error: ")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("command", ["transfer", "steps", "rpc", "tcp"])
def test_help_has_an_example_and_says_what_a_mb_is(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bench", command, "--help"])
    assert not stop.value.code
    out = capsys.readouterr().out
    assert f"tensorwire bench {command}" in out.split("Example")[1]
    assert command == "steps" or "10^6 bytes" in out


def test_more_memory_than_there_is_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, err = run(capsys, "transfer", "--protocols", "grpc++", "--data-mb", "10000000")
    assert status == 1
    assert "GB of memory" in err.splitlines()[-1]


def test_more_requests_on_their_way_than_memory_holds_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, err = run(capsys, "rpc", "--message-size", "2000000000", "--concurrency", "10000")
    assert status == 1
    assert "use a smaller --message-size or --concurrency" in err.splitlines()[-1]


def test_the_command_itself_loads_neither_tensorflow_nor_the_plug_in() -> None:
    code = (
        "import sys, tensorwire.cli.bench, tensorwire.bench.transfer, tensorwire.bench.steps\n"
        "import tensorwire.bench.rpc, tensorwire.bench.tcp, tensorwire.bench.train\n"
        "import tensorwire.measure.remote_hosts, tensorwire.bench.tensor_sides\n"
        "assert not {'tensorflow', 'tensorwire.tf'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_more_clients_than_a_process_may_have_connections_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 1024))
    status, err = run(capsys, "serve", "--clients", "1000")
    assert status == 2
    assert "a process may open 1024 files and sockets here" in err
