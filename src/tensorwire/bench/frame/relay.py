"""Represents a task on another host: `python -m tensorwire.bench.frame.relay WHERE TASK`.

WHERE is JSON: {"agent": address, "hello", "start"} (see `several_hosts`). TASK is as for
`task_host`. What comes in at standard input goes to that task, and each line of the task is printed
here. The process ends with the task's exit status, and prints the end of the task's log to standard
error.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading

from tensorwire.bench.frame import several_hosts
from tensorwire.bench.frame.several_hosts import Hello, call_peer
from tensorwire.bench.lab.channel import TaskEnd
from tensorwire.errors import TensorwireError


def _forward(stream: socket.socket) -> None:
    try:
        while data := os.read(0, 1 << 16):
            stream.sendall(data)
        stream.shutdown(socket.SHUT_WR)
    except OSError:
        return  # the other direction reports the reason


def main(where: str, task: str) -> int:
    end = TaskEnd()
    wanted = json.loads(where)
    agent = wanted["agent"]
    environment = {n: os.environ[n] for n in several_hosts.ENVIRONMENT if n in os.environ}
    try:
        hello, patience_s = Hello(**wanted["hello"]), several_hosts.ANSWER_S
        peer = call_peer(agent, hello, f"agent at {agent}", patience_s)
        peer.send({**wanted["start"], "task": task, "environment": environment})
        peer.receive(patience_s)
    except TensorwireError as error:
        end.send({"error": str(error)})
        return 1
    several_hosts.give_up_deadlines(peer)
    stream = socket.socket(fileno=os.dup(peer.fileno()))
    threading.Thread(target=_forward, args=(stream,), daemon=True).start()
    for line in stream.makefile("rb"):
        message = json.loads(line)
        if "ended" in message:
            sys.stderr.write(message["log"])
            return int(message["ended"]) % 256
        end.send(message)
    sys.stderr.write(f"the agent at {agent} has ended\n")
    return 1


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # a thread still waits for standard input
