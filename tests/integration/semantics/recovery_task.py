"""A chief that trains with a MonitoredTrainingSession and checkpoints, and reports every step.

Started with a channel. Its one argument is JSON: {"spec", "protocol", "directory", "steps",
"save_every"}. After every step it sends {"step", "least", "greatest"}: the global step, and the
range of a variable that grows by one per step; after the last step it sends {"done": true}.
"""

from __future__ import annotations

import json
import sys

from tensorwire.bench.lab.channel import TaskEnd


def main() -> None:
    end = TaskEnd()
    arguments = json.loads(sys.argv[1])
    import tensorflow as tf

    tf1 = tf.compat.v1
    if arguments["protocol"] == "grpc++":
        import tensorwire.tf  # noqa: F401
    tf1.disable_eager_execution()
    spec = arguments["spec"]
    server = tf1.train.Server(spec, "worker", 0, protocol=arguments["protocol"])
    device = tf1.train.replica_device_setter(cluster=tf.train.ClusterSpec(spec))
    with tf1.device(device):
        global_step = tf1.train.get_or_create_global_step()
        counts = tf1.get_variable("counts", [5000], tf.float32, tf1.zeros_initializer())
        with tf.device("/job:worker/task:0"):
            delta = tf.ones([5000]) + 0.0 * counts.read_value()
        with tf.control_dependencies([counts.assign_add(delta)]):
            train = global_step.assign_add(1).op
        with tf.control_dependencies([train]):
            shown = [global_step.read_value(), tf.reduce_min(counts), tf.reduce_max(counts)]
    config = tf1.ConfigProto(operation_timeout_in_ms=60_000)
    with tf1.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=True,
        checkpoint_dir=arguments["directory"],
        save_checkpoint_steps=arguments["save_every"],
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        save_summaries_secs=None,
        log_step_count_steps=None,
        hooks=[tf1.train.StopAtStepHook(last_step=arguments["steps"])],
        config=config,
    ) as session:
        while not session.should_stop():
            step, least, greatest = session.run(shown)
            end.send({"step": int(step), "least": float(least), "greatest": float(greatest)})
            end.receive()  # waits for the test, which chooses the moment to kill
    end.send({"done": True})


if __name__ == "__main__":
    main()
