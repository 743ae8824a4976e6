"""A queue of work items that the workers of a job share."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tensorwire.cluster import parse_tf_config
from tensorwire.plugin.loader import operations

_v1 = tf.compat.v1

_NO_END = 2**63 - 1
_NO_ITEM = -2
"""The number of an item where there is none. kNoItem of the plug-in."""
_MOST_ITEMS = 2**31
"""kItems of the plug-in."""
_WHOLE_ITEM = 2**32 - 1
"""Receipts are `Receipt` of the plug-in: an item's number above these bits, then the index of an
element, then whether it is the last one. All bits: the whole item."""
_MOST_IN_WORK = 1024
"""Items that are in work at one time. A worker that would take one more waits."""
_MOST_AT_ONCE = 64
"""Items that a worker takes in one step, while many are left."""
_STATE_ATTR = "_tensorwire_work_queue"
"""kWorkQueueAttr of the plug-in."""


class WorkItem(NamedTuple):
    """An item that a worker has taken."""

    text: Any
    """The item. String, shape []."""
    position: Any
    """The number of its elements that are done, by whoever had it before. int64, shape []."""
    receipt: Any
    """Tells `WorkQueue.done` that the whole item is done. int64, shape []."""


class WorkQueue(tf.Module):  # type: ignore[misc]
    """Gives each worker the next item when it is ready, so that a slow one does fewer.

    Items are names of files, ranges of rows or the like. All workers make the same queue. It is
    kept in a variable, so it is placed, initialized, saved and restored like one::

        queue = tensorwire.tf.WorkQueue(files, num_epochs=2)
        rows, receipt = iterator_of(queue.dataset(lambda file: tf.data.TextLineDataset(file)
                                                  .batch(512)))
        with tf.control_dependencies([optimizer.minimize(loss(rows))]):
            train_op = queue.done(receipt)

    An item is *taken*, then *in work*, then *done*. It is done when `done` has its receipt, or all
    receipts of its elements. With `take`, `input_dataset` and `input_producer`, which have no
    receipts, it is done when the same worker asks for the next one. If a worker's session ends,
    or its process, its items are given to others. So each item is done at least once, and exactly
    once where no task was lost. Steps end with ``tf.errors.OutOfRangeError`` when all items are
    done; until then a worker for which no item is left waits for what others give back.

    A checkpoint has which items are done, and no update of them is missing in it. What was in work
    is given out again after a restore, without the elements that were done, if they are trained
    on in order.

    Graphs of TensorFlow 1 (sessions and Estimator) give items back through a queue runner, which
    ``MonitoredTrainingSession`` starts. In TensorFlow 2 the coordinator iterates over the queue and
    schedules an item a function; see docs/stragglers.md.

    Args:
        items: the items, as strings, in the same order on every worker.
        num_epochs: how often each item is given out; None: without end, which is 2^31 items.
        shuffle: whether each epoch has another order, which `seed` determines.
        item_timeout_s: seconds after which an item of which nothing was reported is given to
            another worker, for hosts that vanish without closing their connections. None: never.
        synchronous: whether workers that have no item left help with those of others, instead of
            waiting. For synchronous training, where all workers have to take part in a step; needs
            `synchronous_hook`.
        worker: this worker's name in metrics. Default: its task, from TF_CONFIG.

    Raises ValueError for items and options that are none.
    """

    def __init__(
        self,
        items: Sequence[str | bytes],
        num_epochs: int | None = 1,
        shuffle: bool = True,
        seed: int | None = None,
        item_timeout_s: float | None = None,
        synchronous: bool = False,
        worker: str | None = None,
        name: str = "work_queue",
    ) -> None:
        super().__init__(name=name)
        # An array, as tf.Module looks for variables in lists.
        self._items = np.array([tf.compat.as_bytes(item) for item in items], object)
        if not self._items.size:
            raise ValueError("a WorkQueue needs at least one item")
        if num_epochs is not None and num_epochs < 1:
            raise ValueError(f"num_epochs is {num_epochs}: expected at least 1, or None")
        if item_timeout_s is not None and item_timeout_s <= 0:
            raise ValueError(f"item_timeout_s is {item_timeout_s}: expected more than 0, or None")
        total = _NO_END if num_epochs is None else num_epochs * len(self._items)
        if num_epochs is not None and total >= _MOST_ITEMS:
            raise ValueError(f"{total} items in all epochs: expected less than 2^31")
        order = hashlib.sha256(json.dumps([total, shuffle, seed or 0]).encode())
        for item in self._items:
            order.update(len(item).to_bytes(8, "little") + item)
        fingerprint = int.from_bytes(order.digest()[:8], "little", signed=True)
        self._ops = operations()
        self._shuffle, self._seed = shuffle, seed or 0
        self._holder = random.SystemRandom().getrandbits(62) + 1
        self._worker = worker or _this_task()
        self._take = functools.partial(
            self._ops.tensorwire_work_take,
            worker=self._worker,
            holder=self._holder,
            fingerprint=fingerprint,
            timeout_s=item_timeout_s or 0.0,
            fills=synchronous,
        )
        # An item's timeout begins when it is taken, so none waits for another.
        self._most = _MOST_AT_ONCE if item_timeout_s is None else 1
        self._state = _state_variable(name, [fingerprint, total, 0, *[-1] * (2 * _MOST_IN_WORK)])
        if not tf.executing_eagerly():
            self._give_back_when_the_session_ends()

    # Taking items

    def take(self) -> Any:
        """The next item: a string of shape []. The one that was taken before it is done."""
        return self._text(self._taken(finishes=True)[0])

    def take_item(self) -> WorkItem:
        """The next item, which is done when `done` has its receipt."""
        item, first = self._taken(finishes=False)
        return WorkItem(self._text(item), _position(first), _whole_item(first))

    def __iter__(self) -> Iterator[WorkItem]:
        """TensorFlow 2: takes items as they are asked for, until all are done."""
        yield from _until_the_end(self.take_item)

    def done(self, receipts: Any) -> Any:
        """Reports what is done. In TensorFlow 1, an operation for the end of each step.

        Args:
            receipts: of items or elements. int64, any shape.

        Returns how many of them were of items that this worker has in work: int64, shape []. The
        others were given to another worker or, after a restore, to nobody yet.
        """
        return self._ops.tensorwire_work_done(
            state=self._state.handle, receipts=receipts, holder=self._holder
        )

    def dataset(self, elements_of: Callable[[Any], Any]) -> Any:
        """A ``tf.data.Dataset`` of (element, receipt) over the elements of all items. TensorFlow 1.

        Args:
            elements_of: from an item (string, shape []) to the Dataset of its elements. They are
                best batches already: each costs some 0.3 ms of CPU time. An item must have the same
                elements in the same order whenever it is read.
        """
        asks, answers = self._on_demand(finishes=False)

        def answer(_: Any) -> Any:
            is_needed = tf.equal(answers.size(), 0)
            ask = tf.cond(is_needed, lambda: asks.enqueue(True), tf.no_op)
            with tf.control_dependencies([ask]):
                return answers.dequeue()

        def with_receipts(item: Any, first: Any) -> Any:
            elements = elements_of(self._text(item)).skip(_position(first))
            handle = self._ops.tensorwire_work_elements(
                elements=tf.data.experimental.to_variant(elements),
                first=first,
                holder=self._holder,
            )
            spec = (elements.element_spec, tf.TensorSpec([], tf.int64))
            return tf.data.experimental.from_variant(handle, spec)

        # The next item is taken while the last element of the former is trained on: near the end a
        # slow worker has no other item in stock, which nobody could do.
        return _not_ahead(_until_the_end_mark(answer).flat_map(with_receipts).prefetch(1))

    def input_dataset(self) -> Any:
        """A ``tf.data.Dataset`` of items: strings of shape []."""
        if tf.executing_eagerly():
            return tf.data.Dataset.from_generator(
                lambda: _until_the_end(self.take), output_signature=tf.TensorSpec([], tf.string)
            )
        asks, answers = self._on_demand(finishes=True)  # when asked, the last one is done

        def ask(_: Any) -> Any:
            with tf.control_dependencies([asks.enqueue(True)]):
                return answers.dequeue()

        return _not_ahead(_until_the_end_mark(ask).map(lambda item, *_: self._text(item)))

    def input_producer(self) -> Any:
        """A ``tf.queue.FIFOQueue`` of items, for readers of TensorFlow 1.

        It has one item in stock, so the last two items of a lost worker can be lost with it.
        """
        stock = tf.queue.FIFOQueue(1, [tf.string], [[]])
        _v1.train.add_queue_runner(_v1.train.QueueRunner(stock, [stock.enqueue(self.take())]))
        return stock

    # Watching

    def progress(self) -> tuple[Any, Any]:
        """How many items are done, and how many there are in all epochs: int64, shape []."""
        state = self._state.read_value()
        in_work = tf.math.count_nonzero(state[3::2] >= 0)
        return state[2] - in_work, state[1]

    def add_summary(self) -> Any:
        """A summary of TensorFlow 1: the share of items that are done, for TensorBoard."""
        done, total = self.progress()
        return _v1.summary.scalar(f"{self.name}/done_share", done / total)

    def synchronous_hook(self, optimizer: Any) -> Any:
        """A hook that ends the workers of synchronous training together.

        Args:
            optimizer: the ``tf.compat.v1.train.SyncReplicasOptimizer``, after `apply_gradients`.
        """
        return _EndTogether(optimizer.get_chief_queue_runner().queue)

    # Parts

    def _taken(self, finishes: bool) -> Any:
        """The next item: its number in all epochs, and the receipt of its first element."""
        if not tf.executing_eagerly():
            return [each[0] for each in self._take_some(1, finishes, waits=True)]
        # Not on the ps: an eager operation that waits there keeps one of a few threads, which the
        # functions that it waits for may need.
        pause_s = 0.01
        while True:
            taken = [each[0] for each in self._take_some(1, finishes, waits=False)]
            if taken[0].numpy() != _NO_ITEM:
                return taken
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.2)

    def _take_some(self, most: int, finishes: bool, waits: bool) -> Any:
        return self._take(self._state.handle, most=most, finishes=finishes, waits=waits)

    def _text(self, item: Any) -> Any:
        """The item that has this number in all epochs."""
        count = tf.constant(len(self._items), tf.int64)
        index = item % count
        if self._shuffle:
            seed = tf.stack([tf.constant(self._seed, tf.int64), item // count])
            index = tf.random.experimental.index_shuffle(index, seed, count - 1)
        return tf.gather(tf.constant(self._items), index)

    def _on_demand(self, finishes: bool) -> tuple[Any, Any]:
        """A queue of asks (True) and one of answers to them, which are as `_taken` gives. While
        many items are left, an ask may have several answers.
        """
        # An iterator that is initialized again asks although the last ask was not answered.
        asks = tf.queue.FIFOQueue(2**20, [tf.bool], [[]])
        answers = tf.queue.FIFOQueue(_MOST_AT_ONCE, [tf.int64] * 2, [[]] * 2)
        most = 1 if finishes else self._most
        with tf.control_dependencies([asks.dequeue()]):
            without_elements = self._ops.tensorwire_work_empty_items(holder=self._holder)
        with tf.control_dependencies([self.done(without_elements)]):
            taken = self._take_some(most, finishes, waits=True)
        _run_always(answers, answers.enqueue_many(taken), asks, answers)
        return asks, answers

    def _give_back_when_the_session_ends(self) -> None:
        hold = self._ops.tensorwire_work_hold(
            state=self._state.handle, worker=self._worker, holder=self._holder
        )
        give_back = self._ops.tensorwire_work_give_back(
            state=self._state.handle, holder=self._holder
        )
        _v1.train.add_queue_runner(
            _Runner(
                SimpleNamespace(name=f"{self.name}/hold"),
                [hold],
                close_op=tf.no_op(),
                cancel_op=give_back,
                queue_closed_exception_types=(
                    tf.errors.OutOfRangeError,
                    tf.errors.CancelledError,
                    tf.errors.FailedPreconditionError,  # it was replaced, which takes will tell
                ),
            )
        )


class _Runner(_v1.train.QueueRunner):  # type: ignore[misc,name-defined]
    """A QueueRunner whose operations may wait as long as the job runs."""

    def create_threads(self, sess: Any, *args: Any, **options: Any) -> Any:
        return super().create_threads(_WithoutDeadline(sess), *args, **options)


class _WithoutDeadline:
    """A session whose steps do not end after its `operation_timeout_in_ms`."""

    def __init__(self, session: Any) -> None:
        options = _v1.RunOptions(timeout_in_ms=2**31 - 1)
        self.run = functools.partial(session.run, options=options)

    def make_callable(self, fetches: Any) -> Callable[[], Any]:
        return functools.partial(self.run, fetches)


class _EndTogether(_v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
    """Ends the steps of workers that wait for others, which have ended."""

    def __init__(self, tokens: Any) -> None:
        self._close = tokens.close()

    def end(self, session: Any) -> None:
        with contextlib.suppress(tf.errors.CancelledError):  # another worker has closed them
            session.run(self._close)


def _this_task() -> str:
    config = parse_tf_config(os.environ.get("TF_CONFIG", ""))
    if config is not None and config.task is not None:
        # The long form, which metrics shorten to "worker:0".
        return f"/job:{config.task.job}/replica:0/task:{config.task.index}"
    return f"{socket.gethostname()}:{os.getpid()}"


def _state_variable(name: str, value: list[int]) -> Any:
    """On a ps: in TensorFlow 1 where the device function puts it, else on the last one."""
    options = {"trainable": False, "dtype": tf.int64, "name": f"{name}/state"}
    if tf.executing_eagerly():
        devices = [each.name for each in tf.config.list_logical_devices("CPU")]
        with tf.device(max((each for each in devices if "/job:ps/" in each), default=devices[0])):
            return tf.Variable(tf.constant(value, tf.int64), **options)
    state = _v1.Variable(tf.constant(value, tf.int64), use_resource=True, **options)
    attr = _v1.AttrValue(b=True)
    state.handle.op._set_attr(_STATE_ATTR, attr)
    return state


def _run_always(queue: Any, operation: Any, *closed: Any) -> None:
    """Repeats an operation that feeds `queue` until all items of a work queue are done, then puts
    an end mark into it. Closes the queues `closed` when the session ends.
    """
    end = queue.enqueue([tf.constant(-1, tf.int64)] * len(queue.dtypes))
    cancel = tf.group(*(each.close(cancel_pending_enqueues=True) for each in closed))
    _v1.train.add_queue_runner(_Runner(queue, [operation], close_op=end, cancel_op=cancel))


def _until_the_end(take: Callable[[], Any]) -> Iterator[Any]:
    with contextlib.suppress(tf.errors.OutOfRangeError):
        while True:
            yield take()


def _until_the_end_mark(answer: Callable[[Any], Any]) -> Any:
    """A Dataset of the items that `answer` gives for 0, 1, 2 and so on, as `_taken` gives them."""
    answers = tf.data.Dataset.range(_NO_END).map(lambda number: tuple(answer(number)))
    return answers.take_while(lambda item, *_: tf.greater_equal(item, 0))


def _not_ahead(dataset: Any) -> Any:
    """TensorFlow would read ahead by itself, and so take items, or end those that it has."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    options.experimental_optimization.map_parallelization = False
    return dataset.with_options(options)


def _position(first: Any) -> Any:
    """The index in the receipt of an item's first element."""
    return first % (_WHOLE_ITEM + 1) // 2


def _whole_item(receipt: Any) -> Any:
    return tf.bitwise.bitwise_or(receipt, tf.constant(_WHOLE_ITEM, tf.int64))
