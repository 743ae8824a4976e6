"""The dry run of a script: records its variables, and ends the script before it trains.

No server is started and no cluster is connected. The process ends at the first session that could
train, or after tracing the first function that a coordinator schedules. The variables are written
to a file; of several processes, only the first writes it.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from tensorwire.placement import graphs, splits, strategy_v2
from tensorwire.placement.plan import Model, Variable
from tensorwire.plugin.patches import after_import

# Larger values are not allocated: a table of the real size may not fit into this machine.
_MADE_BYTES = 1 << 20


def watch(file: Path) -> None:
    """Starts observing; called in each interpreter of a dry run. The model is written to `file`."""
    after_import("tensorflow", lambda: _Observer(file).install())


class _Observer:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._splittable: set[str] = set()
        self._names = strategy_v2.Names()
        self._of_strategy: dict[str, Variable] = {}
        self._made: dict[
            int, tuple[str, Any]
        ] = {}  # by id(): its name, and a reference that keeps the id valid
        self._servers = 0

    def install(self) -> None:
        splits.get_all_by(splits.noting_splittable(self._splittable))
        self._replace_servers()
        self._replace_sessions()
        self._replace_strategies()
        atexit.register(self._at_exit)

    def finish(self, graph: Any = None) -> NoReturn:
        """Writes the variables, if there are any, and ends the process at once."""
        self._write(graph)
        sys.stdout.flush()
        sys.stderr.flush()
        # Not an exception, because the script might catch it. Also does not wait for other threads.
        os._exit(0)

    def _write(self, graph: Any) -> None:
        model = Model(tuple(self._of_strategy.values()))
        if not model.variables and graph is not None:
            model = graphs.model_of(graph, self._splittable)
        if not model.variables:
            return
        with tempfile.NamedTemporaryFile(
            "w", dir=self._file.parent, prefix=self._file.name, delete=False
        ) as file:
            file.write(json.dumps(dataclasses.asdict(model)))
        with contextlib.suppress(FileExistsError):
            os.link(file.name, self._file)  # atomic, and only the first process succeeds
        Path(file.name).unlink()

    def _at_exit(self) -> None:
        """If the script ended without a session, its graph is used, unless it failed."""
        import tensorflow as tf

        if not hasattr(sys, "last_value"):
            self._write(tf.compat.v1.get_default_graph())

    def _replace_servers(self) -> None:
        from tensorflow.python.training import server_lib

        observer = self

        def init(server: Any, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("start", None)
            names = ("job_name", "task_index", "protocol", "config")
            told = {**dict(zip(names, args[1:], strict=False)), **kwargs}
            definition = args[0] if args else told.pop("server_or_cluster_def")
            server._server_def = server_lib._make_server_def(
                definition, *(told.get(name) for name in names)
            )
            server._server = None
            observer._servers += 1

        server_lib.Server.__init__ = init
        server_lib.Server.__del__ = lambda server: None
        server_lib.Server.start = lambda server: None
        server_lib.Server.join = lambda server: self.finish()
        server_lib.Server.target = "grpc://dry-run"

    def _replace_sessions(self) -> None:
        from tensorflow.python.client import session

        init, run = session.BaseSession.__init__, session.BaseSession.run
        observer = self

        def new_init(sess: Any, target: str = "", graph: Any = None, config: Any = None) -> None:
            observer._end_before_training(target, graph)
            init(sess, target, graph, config)

        def new_run(sess: Any, *args: Any, **kwargs: Any) -> Any:
            observer._end_before_training(sess.sess_str, sess.graph)
            return run(sess, *args, **kwargs)

        session.BaseSession.__init__ = new_init
        session.BaseSession.run = new_run

    def _end_before_training(self, target: Any, graph: Any) -> None:
        import tensorflow as tf

        # A local session next to a cluster's server has another purpose, such as reading data.
        if not target and self._servers:
            return
        graph = graph or tf.compat.v1.get_default_graph()
        if graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES):
            self.finish(graph)

    def _replace_strategies(self) -> None:
        from tensorflow.python.distribute import parameter_server_strategy_v2 as pss
        from tensorflow.python.distribute.coordinator import cluster_coordinator

        observer = self

        def connect(strategy: Any, coordinator_name: str) -> None:
            spec = strategy._cluster_resolver.cluster_spec().as_dict()
            strategy._num_workers = len(spec.get("worker", ()))
            strategy._num_ps = len(spec.get("ps", ()))

        pss.ParameterServerStrategyV2._connect_to_cluster = connect
        extended = pss.ParameterServerStrategyV2Extended
        extended._create_variable = lambda this, _, **kwargs: observer._variable(
            this._container_strategy(), kwargs
        )

        def init(coordinator: Any, strategy: Any) -> None:
            coordinator._strategy = strategy
            strategy.extended._used_with_coordinator = True

        def schedule(coordinator: Any, fn: Any, args: Any = None, kwargs: Any = None) -> None:
            # Tracing also creates late variables, such as the optimizer's slots. It may fail in a
            # dry run; the variables of the model are known by then.
            with contextlib.suppress(Exception), coordinator.strategy.scope():
                fn.get_concrete_function(*(args or ()), **(kwargs or {}))
            observer.finish()

        coordinator = cluster_coordinator.ClusterCoordinator
        coordinator.__init__ = init
        coordinator.__del__ = lambda coordinator: None
        coordinator.schedule = schedule
        coordinator.create_per_worker_dataset = lambda _, source: _dataset_here(source)
        for waiting in ("join", "fetch", "done"):
            setattr(coordinator, waiting, lambda *args, **kwargs: observer.finish())

    def _variable(self, strategy: Any, kwargs: dict[str, Any]) -> Any:
        """Records a variable that a ParameterServerStrategy should make, and makes a local one."""
        import tensorflow as tf
        from tensorflow.python.ops import resource_variable_ops as resource

        initial = kwargs.get("initial_value")
        shape, dtype = kwargs.get("shape"), kwargs.get("dtype")
        if callable(initial) and (shape is None or dtype is None):
            initial = initial()
        if not callable(initial) and initial is not None:
            initial = tf.convert_to_tensor(initial, dtype=dtype)
            shape, dtype = initial.shape, initial.dtype
        shape, dtype = tf.TensorShape(shape), tf.dtypes.as_dtype(dtype)
        value_bytes = (shape.num_elements() or 0) * dtype.size
        keywords = {
            "name": kwargs.get("name"),
            "trainable": kwargs.get("trainable"),
            "distribute_strategy": strategy,
        }
        if value_bytes <= _MADE_BYTES and initial is not None:
            variable = resource.ResourceVariable(initial, dtype=dtype, shape=shape, **keywords)
        else:
            variable = resource.UninitializedVariable(dtype=dtype, shape=shape, **keywords)
        self._note(variable, kwargs, value_bytes)
        return variable

    def _note(self, variable: Any, kwargs: dict[str, Any], value_bytes: int) -> None:
        beside = self._made.get(id(kwargs.get("colocate_with")))
        if beside is not None:
            owner = self._of_strategy[beside[0]]
            slot_bytes = owner.slot_bytes + value_bytes
            self._of_strategy[owner.name] = dataclasses.replace(owner, slot_bytes=slot_bytes)
            self._made[id(variable)] = (owner.name, variable)
        elif strategy_v2.is_placed(kwargs):
            name = self._names.next(kwargs)
            shape = tuple(variable.shape.as_list() or ()) if variable.shape.rank else ()
            self._of_strategy[name] = Variable(
                name, shape, variable.dtype.size, can_split=bool(shape)
            )
            self._made[id(variable)] = (name, variable)


def _dataset_here(source: Any) -> Any:
    """The dataset that a worker would make; `source` is a dataset or a function that makes one."""
    dataset = source() if callable(source) else source
    if hasattr(dataset, "build"):  # a strategy's dataset, which the workers build
        dataset.build()
    return dataset
