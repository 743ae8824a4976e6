"""A work queue: who gets which item, and what becomes of it."""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tensorwire.tf import WorkQueue
from waiting import wait_until

from .support import STEP_TIMEOUT_MS, TensorFlowCluster, session_config, tf1

pytestmark = pytest.mark.timeout(180, func_only=True)

_NAMES = (f"queue_{number}" for number in itertools.count())


@pytest.fixture
def cluster(protocol: str) -> Iterator[TensorFlowCluster]:
    with TensorFlowCluster(protocol, {"ps": 1, "worker": 2}, plugin=True) as started:
        started.start_all()
        yield started


class Worker:
    """A worker's graph and session: each step takes, and adds 1 to a variable."""

    def __init__(
        self,
        cluster: TensorFlowCluster,
        index: int,
        items: int,
        fetched: Callable[[WorkQueue], Any],
        checkpoints: Path | None = None,
        **options: Any,
    ) -> None:
        self._cluster, self._index = cluster, index
        self._is_closed = False
        with tf.Graph().as_default() as self.graph:
            self.device = f"/job:worker/task:{index}"
            with tf1.device(tf1.train.replica_device_setter(1, worker_device=self.device)):
                self.steps = tf1.train.get_or_create_global_step()
                texts = [f"{i}" for i in range(items)]
                self.queue = WorkQueue(texts, worker=self.device, **options)
                self.fetched = fetched(self.queue)
                self.receipt = tf1.placeholder(tf.int64, [None])
                with tf.control_dependencies([tf1.assign_add(self.steps, 1)]):
                    self.done = self.queue.done(self.receipt)
                self.progress = self.queue.progress()
            self.session = tf1.train.MonitoredTrainingSession(
                master=cluster.target(f"worker:{index}"),
                is_chief=index == 0,
                config=session_config(),
                checkpoint_dir=str(checkpoints) if checkpoints else None,
                save_checkpoint_steps=1_000_000 if checkpoints else None,
                save_summaries_steps=0,
                save_summaries_secs=None,
                log_step_count_steps=None,
            )
        cluster.at_end.callback(self.close)

    def close(self) -> None:
        """Closes the session. A killed master is started again, as TensorFlow waits for it."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._cluster.tasks[f"worker:{self._index}"].poll() is not None:
            self._cluster.ready(self._cluster.begin("worker", self._index))
        with self.graph.as_default(), contextlib.suppress(tf.errors.OpError):
            self.session.close()

    def take(self) -> Any:
        return self.session.run(self.fetched)

    def reports(self, *receipts: Any) -> int:
        accepted: int = self.session.run(self.done, {self.receipt: list(receipts)})
        return accepted


def number_of(receipt: Any) -> int:
    return int(receipt) >> 32


def queue_of(cluster: TensorFlowCluster) -> dict[str, int]:
    """What the metrics of the ps say of its queue."""
    queues: Any = cluster.stats("ps:0")["work_queues"]
    return {name: queues[0][name] for name in ("items", "done", "in_work", "returned")}


def await_in_work(cluster: TensorFlowCluster, count: int) -> None:
    def in_work() -> int:
        return queue_of(cluster)["in_work"]

    wait_until(lambda: in_work() == count, STEP_TIMEOUT_MS / 1e3, in_work)


def rest(worker: Worker) -> list[str]:
    """What the worker gets until the end."""
    found: list[str] = []
    with contextlib.suppress(tf.errors.OutOfRangeError):
        while True:
            found.append(worker.take().decode())
    return found


@pytest.mark.newest
def test_each_item_is_given_to_one_worker_until_all_are_done(cluster: TensorFlowCluster) -> None:
    first, second = (
        Worker(cluster, index, 5, WorkQueue.take, num_epochs=3, seed=index and None)
        for index in range(2)
    )
    epochs = [[], [], []]
    for taken in range(14):
        epochs[taken // 5].append((first if taken % 3 else second).take().decode())
    assert all(len(set(epoch)) == len(epoch) for epoch in epochs)
    assert len({tuple(epoch[:4]) for epoch in epochs}) == 3  # each in another order
    # One item is left, and both have one in work. Who finds none waits for the other's.
    epochs[2].append(first.take().decode())
    waiting = threading.Thread(target=lambda: others.extend(rest(second)))
    others: list[str] = []
    waiting.start()
    with pytest.raises(tf.errors.OutOfRangeError):
        first.take()
    waiting.join()
    assert others == []
    assert sorted(itertools.chain(*epochs)) == sorted(list("01234") * 3)


def test_a_lost_worker_gives_back_what_is_not_done(cluster: TensorFlowCluster) -> None:
    first, lost = (Worker(cluster, index, 3, WorkQueue.take_item) for index in range(2))
    done, kept, given_back = first.take(), first.take(), lost.take()
    assert first.reports(done.receipt) == 1
    assert queue_of(cluster) == {"items": 3, "done": 1, "in_work": 2, "returned": 0}
    cluster.tasks["worker:1"].stop(signal.SIGKILL)
    again = first.take()  # waits until the loss is noticed
    assert again.text == given_back.text
    assert number_of(again.receipt) == number_of(given_back.receipt)
    assert first.session.run(first.progress) == (1, 3)
    assert first.reports(again.receipt, kept.receipt) == 2
    with pytest.raises(tf.errors.OutOfRangeError):
        first.take()


@pytest.mark.newest
def test_a_worker_that_is_started_again_or_is_silent_loses_its_items(
    cluster: TensorFlowCluster,
) -> None:
    first = Worker(cluster, 0, 2, WorkQueue.take_item)
    silent = Worker(cluster, 1, 2, WorkQueue.take_item, item_timeout_s=0.5)
    before = silent.take()
    again = Worker(cluster, 1, 2, WorkQueue.take_item, item_timeout_s=0.5)
    assert again.take().text == before.text
    assert silent.reports(before.receipt) == 0
    assert {first.take().text, first.take().text} == {b"0", b"1"}  # the second after the timeout


def next_of(dataset: Any) -> Any:
    """The next element of a dataset, whose iterator a session initializes with its tables."""
    iterator = tf1.data.make_initializable_iterator(dataset)
    tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


def elements(queue: WorkQueue) -> Any:
    """Item "n" has n elements."""
    rows = queue.dataset(
        lambda item: tf.data.Dataset.range(tf.strings.to_number(item, tf.int64)).map(
            lambda row: {"row": row, "item": item}
        )
    )
    return next_of(rows)


def test_an_item_is_done_with_its_last_element(cluster: TensorFlowCluster, tmp_path: Path) -> None:
    seen: Counter[tuple[bytes, int]] = Counter()

    def train(worker: Worker, most: int) -> None:
        for _ in range(most):
            element, receipt = worker.take()
            seen[element["item"], element["row"]] += 1
            assert worker.reports(receipt) == 1

    worker = Worker(cluster, 0, 5, elements, tmp_path, shuffle=False)
    train(worker, 5)  # "0" has none, "1" and "2" are done, and 2 elements of "3"
    worker.close()  # saves
    cluster.tasks["ps:0"].stop(signal.SIGKILL)
    cluster.ready(cluster.begin("ps", 0))
    worker = Worker(cluster, 0, 5, elements, tmp_path, shuffle=False)
    assert worker.session.run(worker.progress) == (3, 5)
    with pytest.raises(tf.errors.OutOfRangeError):
        train(worker, 100)
    assert seen == {(f"{item}".encode(), row): 1 for item in range(5) for row in range(item)}


@pytest.mark.newest
def test_items_without_elements_are_done(cluster: TensorFlowCluster) -> None:
    def nothing(queue: WorkQueue) -> Any:
        return next_of(queue.dataset(lambda item: tf.data.Dataset.range(0)))

    worker = Worker(cluster, 0, 20, nothing)
    with pytest.raises(tf.errors.OutOfRangeError):
        worker.take()
    assert queue_of(cluster) == {"items": 20, "done": 20, "in_work": 0, "returned": 0}


@pytest.mark.newest
def test_the_next_item_is_taken_with_the_last_element(cluster: TensorFlowCluster) -> None:
    def fours(queue: WorkQueue) -> Any:
        return next_of(queue.dataset(lambda item: tf.data.Dataset.range(4)))

    worker = Worker(cluster, 0, 8, fours)
    for _ in range(4):
        for row in range(4):
            element, receipt = worker.take()
            assert (element, receipt & 1) == (row, row == 3)
            await_in_work(cluster, 1 if row < 3 else 2)
            assert worker.reports(receipt) == 1


@pytest.mark.newest
def test_a_worker_takes_several_items_while_many_are_left(cluster: TensorFlowCluster) -> None:
    """At most an eighth of what it has done, so that who is slow or has just come takes one."""

    def single(queue: WorkQueue) -> Any:
        return next_of(queue.dataset(tf.data.Dataset.from_tensors))

    worker, other = (Worker(cluster, index, 600, single) for index in range(2))
    done: list[bytes] = []
    most = []

    def train(count: int) -> None:
        for _ in range(count):
            item, receipt = worker.take()
            assert worker.reports(receipt) == 1
            done.append(item)

    for _ in range(10):
        train(10)
        most.append(queue_of(cluster)["in_work"])
        assert most[-1] <= 2 + len(done) // 8
    assert max(most) > 4
    taken, receipt = other.take()

    def in_work() -> list[int]:
        queues: Any = cluster.stats("ps:0")["work_queues"]
        return [each["in_work"] for each in queues[0]["workers"] if each["worker"] == other.device]

    # This one, and the one that is read ahead.
    wait_until(lambda: in_work() == [2], STEP_TIMEOUT_MS / 1e3, in_work)
    assert other.reports(receipt) == 1
    cluster.tasks["worker:1"].stop(signal.SIGKILL)  # gives back the other one
    with pytest.raises(tf.errors.OutOfRangeError):
        train(600)
    assert len(done) == 599 and {*done, taken} == {f"{i}".encode() for i in range(600)}


@pytest.mark.newest
def test_elements_may_be_ragged_sparse_or_of_unknown_shape(cluster: TensorFlowCluster) -> None:
    def of(item: Any) -> Any:
        rows = tf.data.Dataset.range(3)
        ragged = rows.map(lambda row: tf.ragged.range(tf.stack([row, row + 1])))
        sparse = rows.map(lambda row: tf.sparse.from_dense(tf.one_hot(row, 3)))
        words = rows.map(lambda row: tf.strings.split([item]).values)
        unknown = rows.map(lambda row: tf.io.parse_tensor(tf.io.serialize_tensor([row]), tf.int64))
        return tf.data.Dataset.zip(
            {"ragged": ragged, "sparse": sparse, "words": words, "any": unknown}
        )

    def fetched(queue: WorkQueue) -> Any:
        element, receipt = next_of(queue.dataset(of))
        return {**element, "ragged": element["ragged"].to_tensor()}, receipt

    worker = Worker(cluster, 0, 2, fetched, shuffle=False)
    for item, row in itertools.product((0, 1), range(3)):
        element, receipt = worker.take()
        assert element["ragged"].shape == (2, row + 1)
        assert element["sparse"].indices.tolist() == [[row]]
        assert (element["words"].tolist(), element["any"].tolist()) == ([f"{item}".encode()], [row])
        assert worker.reports(receipt) == 1


@pytest.mark.newest
def test_a_restore_takes_back_what_was_done_since(
    cluster: TensorFlowCluster, tmp_path: Path
) -> None:
    worker = Worker(cluster, 0, 6, WorkQueue.take, tmp_path)
    saved = [worker.take().decode() for _ in range(3)]
    saver = worker.session.graph.get_collection(tf1.GraphKeys.SAVERS)[0]
    state = worker.session._tf_sess()  # a Saver takes no other
    with worker.session.graph.as_default():
        path = saver.save(state, str(tmp_path / "now"))
        lost = [worker.take().decode(), worker.take().decode()]
        saver.restore(state, path)
    # The third was in work when it was saved.
    assert rest(worker)[:3] == [saved[2], *lost]


def test_a_checkpoint_has_the_updates_of_all_that_is_done(
    cluster: TensorFlowCluster, tmp_path: Path
) -> None:
    with tf.Graph().as_default() as graph:
        with tf1.device(tf1.train.replica_device_setter(1)):
            others = [tf1.get_variable(name, [2], use_resource=True) for name in ("a", "z")]
            others.append(tf1.get_variable("reference", [2], use_resource=False))
            WorkQueue(["item"])
        saver = tf1.train.Saver(sharded=True)
        names = saver.as_saver_def()
        with cluster.session(graph) as session:
            session.run(tf1.global_variables_initializer())
            metadata = tf1.RunMetadata()
            session.run(
                names.save_tensor_name,
                {names.filename_tensor_name: str(tmp_path / "model")},
                tf1.RunOptions(output_partition_graphs=True),
                metadata,
            )
    nodes = {node.name: node for part in metadata.partition_graphs for node in part.node}
    first = "^work_queue/state/Read/ReadVariableOp"
    assert first[1:] in nodes
    for other in others[:2]:
        assert first in nodes[f"{other.op.name}/Read/ReadVariableOp"].input
    save = next(node for node in nodes.values() if node.op == "SaveV2")
    assert first in save.input  # it reads the reference variable itself


@pytest.mark.newest
def test_workers_that_disagree_are_told(cluster: TensorFlowCluster) -> None:
    Worker(cluster, 0, 3, WorkQueue.take).take()
    other = Worker(cluster, 1, 4, WorkQueue.take)
    with pytest.raises(tf.errors.InvalidArgumentError, match="another name"):
        other.take()


def test_synchronous_workers_end_together(cluster: TensorFlowCluster) -> None:
    """The last item takes one worker five steps; the other one helps."""
    ended = [threading.Event(), threading.Event()]
    started = threading.Barrier(2)

    class Ended(tf1.train.SessionRunHook):  # type: ignore[misc,name-defined]
        """Notes the end of a worker's steps. To close its session may take stock TensorFlow long:
        the optimizer's queue runner on the chief waits for gradients.
        """

        def __init__(self, index: int) -> None:
            self._index = index

        def end(self, session: Any) -> None:
            del session
            ended[self._index].set()

    def work(index: int) -> None:
        device = f"/job:worker/task:{index}"
        with tf.Graph().as_default():
            with tf1.device(tf1.train.replica_device_setter(1, worker_device=device)):
                steps = tf1.train.get_or_create_global_step()
                weight = tf1.get_variable("weight", [], initializer=tf1.zeros_initializer())
                queue = WorkQueue(["5"], synchronous=True, worker=device)
                _, receipt = elements(queue)
                optimizer = tf1.train.SyncReplicasOptimizer(
                    tf1.train.GradientDescentOptimizer(0.1), 2, 2
                )
                position = tf.cast(receipt % 2**32 // 2, tf.float32)
                train = optimizer.minimize(weight * position, steps)
                with tf.control_dependencies([train]):
                    step = queue.done(receipt)
                hooks = [
                    optimizer.make_session_run_hook(index == 0, num_tokens=0),
                    queue.synchronous_hook(optimizer),
                    Ended(index),
                ]
            with tf1.train.MonitoredTrainingSession(
                cluster.target(f"worker:{index}"),
                index == 0,
                hooks=hooks,
                config=session_config(),
                log_step_count_steps=None,
                stop_grace_period_secs=1,
            ) as session:
                started.wait()
                while not session.should_stop():
                    session.run(step)

    threads = [threading.Thread(target=work, args=[index], daemon=True) for index in range(2)]
    for thread in threads:
        thread.start()
    assert all(each.wait(60) for each in ended)
    for thread in threads:
        thread.join(STEP_TIMEOUT_MS / 1e3)


@pytest.mark.newest
def test_an_item_of_input_dataset_is_done_when_the_next_one_is_taken(
    cluster: TensorFlowCluster,
) -> None:
    worker = Worker(cluster, 0, 40, lambda queue: next_of(queue.input_dataset()))
    for done in range(20):
        worker.take()
        assert queue_of(cluster) == {"items": 40, "done": done, "in_work": 1, "returned": 0}


def test_the_spelling_of_deeprec(cluster: TensorFlowCluster) -> None:
    def of_dataset(queue: WorkQueue) -> Any:
        return next_of(queue.input_dataset())

    for fetched in (of_dataset, lambda queue: queue.input_producer().dequeue()):
        worker = Worker(cluster, 0, 4, fetched, num_epochs=2, name=next(_NAMES))
        assert sorted(rest(worker)) == sorted("01230123")
