"""A task that serves one address of a cluster and answers questions about itself.

Started with a channel (tensorwire.bench.lab). Its one argument is JSON: {"spec", "job", "index",
"protocol", "plugin", "device", "cpus", "imports"}; "device" is a library with a pluggable device,
or null. It says {"ready": true} when it serves, and ends when the channel is closed.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys

from tensorwire.bench.lab.channel import TaskEnd


def trim() -> None:
    """Returns freed memory of the C library's allocator to the system."""
    ctypes.CDLL(None).malloc_trim(0)


def main() -> None:
    end = TaskEnd()
    arguments = json.loads(sys.argv[1])
    import tensorflow as tf

    protocol = arguments["protocol"]
    if arguments["plugin"]:
        import tensorwire.tf
    if arguments["device"] is not None:
        from tensorflow.python.framework import load_library

        load_library.load_pluggable_device_library(arguments["device"])
    for module in arguments["imports"]:
        importlib.import_module(module)
    server = tf.compat.v1.train.Server(
        arguments["spec"],
        job_name=arguments["job"],
        task_index=arguments["index"],
        protocol=protocol,
        config=tf.compat.v1.ConfigProto(device_count={"CPU": arguments["cpus"]}),
    )
    end.send({"ready": True, "target": server.target})
    while (question := end.receive()) is not None:
        if question["ask"] == "stats":
            end.send({"stats": tensorwire.tf.stats() if arguments["plugin"] else None})
        elif question["ask"] == "trim":
            trim()
            end.send({"trimmed": True})
        elif question["ask"] == "fork":
            child = os.fork()
            if child == 0:
                os.closerange(0, 2)  # the channel ends with the task
                signal.pause()
            end.send({"child": child})
        else:
            end.send({"error": f"unknown question {question['ask']!r}"})


if __name__ == "__main__":
    main()
