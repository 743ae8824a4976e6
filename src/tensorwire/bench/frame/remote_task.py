"""Represents a task on another host: `python -m tensorwire.bench.frame.remote_task WHERE TASK`.

WHERE is JSON: {"agent": address, "hello", "start"} (see `remote_hosts`). TASK is as for
`task_host`. Each line of standard input is forwarded to that task, and each line of the task is
printed here. The process ends with the task's exit status, and prints the end of the task's log to
standard error.
"""

from __future__ import annotations

import json
import os
import sys
import threading

from tensorwire.bench.frame.peer import Hello, Peer, PeerGone, call_peer
from tensorwire.bench.frame.remote_hosts import relay_environment
from tensorwire.bench.lab.channel import TaskEnd
from tensorwire.errors import TensorwireError

_ANSWER_S = 30.0


def _forward(end: TaskEnd, peer: Peer) -> None:
    try:
        while (message := end.receive()) is not None:
            peer.send(message)
    except PeerGone:
        return  # the other direction reports the reason
    peer.end()


def main(where: str, task: str) -> int:
    end = TaskEnd()
    wanted = json.loads(where)
    try:
        agent = wanted["agent"]
        peer = call_peer(agent, Hello(**wanted["hello"]), f"agent at {agent}", _ANSWER_S)
        peer.send({**wanted["start"], "task": task, "environment": dict(relay_environment())})
        peer.receive(_ANSWER_S)
    except TensorwireError as error:
        end.send({"error": str(error)})
        return 1
    threading.Thread(target=_forward, args=(end, peer), daemon=True).start()
    try:
        while True:
            while not peer.wait(60.0):
                pass
            message = peer.receive(_ANSWER_S)
            if "ended" in message:
                sys.stderr.write(message["log"])
                return int(message["ended"]) % 256
            end.send(message)
    except PeerGone:
        sys.stderr.write(f"the agent at {agent} has ended\n")
        return 1


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # a thread still waits for standard input
