"""Patches of the few places where TensorFlow's Python chooses a protocol.

Every server that a script makes (tf.compat.v1.train.Server, tf.distribute.Server, an estimator's, a
distribution strategy's) gets its definition from ``server_lib._make_server_def``. Every strategy
that runs remote functions passes its definition to the eager context. The session's target stays
"grpc://", because the master session uses gRPC with either protocol.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Sequence
from importlib import util
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from tensorwire.plugin.rewrites import ARGUMENTS, PARTIAL_RUN_NODE, choose

_LOOK_FOR_SIGNALS_S = 1.0


def after_import(name: str, callback: Callable[[], None]) -> None:
    """Calls `callback` now if module `name` has been imported, or else right after its import.

    An exception of the callback is raised by the ``import`` statement.
    """
    if name in sys.modules:
        callback()
    else:
        sys.meta_path.insert(0, _AfterImport(name, callback))


class _AfterImport(MetaPathFinder):
    """Finds one module as the other finders do, and calls back after its loader has run."""

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self._name = name
        self._callback = callback
        self._called = False
        self._here = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name or self._called or getattr(self._here, "inside", False):
            return None
        self._here.inside = True
        try:
            spec = util.find_spec(fullname)
        finally:
            self._here.inside = False
        if spec is not None and spec.loader is not None:
            # Patch the instance, so that the loader keeps its type, which others need for sources.
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                if not self._called:
                    self._called = True
                    self._callback()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def replace_protocol(protocol: str) -> None:
    """Makes every server and every cluster of this process use `protocol` from now on.

    TensorFlow must have been imported. Calling it again replaces the protocol of the first call.
    """
    from tensorflow.python.eager import context
    from tensorflow.python.training import server_lib

    make = _original(server_lib._make_server_def)

    @functools.wraps(make)
    def make_server_def(*args: Any, **kwargs: Any) -> Any:
        server_def = make(*args, **kwargs)
        server_def.protocol = protocol
        return server_def

    server_lib._make_server_def = make_server_def

    for name in ("set_server_def", "update_server_def"):
        setattr(context.Context, name, _with_protocol(getattr(context.Context, name), protocol))


def _with_protocol(method: Any, protocol: str) -> Any:
    inner = _original(method)

    @functools.wraps(inner)
    def with_protocol(self: Any, server_def: Any, *args: Any, **kwargs: Any) -> Any:
        if server_def is not None and server_def.protocol != protocol:
            changed = type(server_def)()
            changed.CopyFrom(server_def)  # the caller's object is not changed
            changed.protocol = protocol
            server_def = changed
        return inner(self, server_def, *args, **kwargs)

    return with_protocol


def _original(function: Any) -> Any:
    """The function that an earlier patch replaced, or the function itself."""
    return getattr(function, "__wrapped__", function)


_replaced: list[tuple[type, str, Any]] = []
"""What the optional patches have put into TensorFlow: the class, the method's name, and ours."""


def _replace(owner: type, name: str, ours: Any) -> None:
    setattr(owner, name, ours)
    _replaced.append((owner, name, ours))


def switch(on: bool) -> None:
    """Applies the patches without which grpc++ works, too, or takes them back.

    What another library has replaced since is left as it is.
    """
    if on:
        let_rewrites_see_partial_runs()
        let_config_protos_name_rewrites()
        let_ctrl_c_end_a_join()
    while _replaced and not on:
        owner, name, ours = _replaced.pop()
        if getattr(owner, name) is ours:
            setattr(owner, name, ours.__wrapped__)


def let_estimators_name_our_protocol() -> None:
    """Makes estimators (TensorFlow up to 2.15) accept "grpc++", which their check rejects."""
    after_import("tensorflow_estimator.python.estimator.run_config", _widen_run_config_check)


def _widen_run_config_check() -> None:
    from tensorflow_estimator.python.estimator import run_config

    from tensorwire.cluster import GRPC, GRPCPP

    check = _original(run_config._validate_properties)

    @functools.wraps(check)
    def validate_properties(config: Any) -> None:
        named = config._protocol
        if named == GRPCPP:
            config._protocol = GRPC
        try:
            check(config)
        finally:
            config._protocol = named

    run_config._validate_properties = validate_properties


def let_config_protos_name_rewrites() -> None:
    """Makes ``ConfigProto(tensor_fuse=True)`` work, as in GRPC++'s manual, and all other rewrites.

    The class stays TensorFlow's own; only its initializer accepts more arguments.
    """
    from tensorflow.core.protobuf import config_pb2

    initialise = _original(config_pb2.ConfigProto.__init__)

    @functools.wraps(initialise)
    def with_rewrites(self: Any, *args: Any, **kwargs: Any) -> None:
        chosen = {name: kwargs.pop(name) for name in ARGUMENTS if name in kwargs}
        initialise(self, *args, **kwargs)
        choose(self, **chosen)

    _replace(config_pb2.ConfigProto, "__init__", with_rewrites)


def let_ctrl_c_end_a_join() -> None:
    """Makes Ctrl-C end a task that waits in ``server.join()``.

    TensorFlow waits in native code, where Python does not handle signals. So ``join`` runs in
    another thread, for which the main thread waits.
    """
    from tensorflow.python.training import server_lib

    join = _original(server_lib.Server.join)

    @functools.wraps(join)
    def join_in_a_thread(self: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            join(self)  # no signal is handled here
            return
        failures: list[Exception] = []

        def wait() -> None:
            try:
                join(self)
            except Exception as error:
                failures.append(error)

        waiting = threading.Thread(target=wait, name="tensorwire-join", daemon=True)
        waiting.start()
        # A signal right before the wait, or one delivered to another thread, does not end the wait.
        while waiting.is_alive():
            waiting.join(_LOOK_FOR_SIGNALS_S)
        if failures:
            raise failures[0]

    _replace(server_lib.Server, "join", join_in_a_thread)


def let_rewrites_see_partial_runs() -> None:
    """Makes ``Session.partial_run_setup`` mark its graph for the plug-in, which leaves it as it is.

    The feeds of a partial run may depend on its earlier results, which the graph does not show, so
    rewritten operations could wait for each other. TensorFlow does not tell an optimization pass
    that a graph is a partial run's. So each has a target that does nothing, and that has a name.
    """
    from tensorflow.python.client import session
    from tensorflow.python.ops import control_flow_ops

    setup = _original(session.BaseSession.partial_run_setup)
    marking = threading.Lock()

    @functools.wraps(setup)
    def partial_run_setup(self: Any, fetches: Any, feeds: Any = None) -> Any:
        graph = self.graph
        with marking:
            try:
                mark = graph.get_operation_by_name(PARTIAL_RUN_NODE)
            except KeyError:
                was_finalized = graph.finalized
                graph._unsafe_unfinalize()
                with (
                    graph.as_default(),
                    graph.device(None),
                    graph.name_scope(None),
                    graph.control_dependencies(None),
                ):
                    mark = control_flow_ops.no_op(PARTIAL_RUN_NODE)
                if was_finalized:
                    graph.finalize()
        return setup(self, [fetches, mark], feeds)

    _replace(session.BaseSession, "partial_run_setup", partial_run_setup)


def let_sessions_see_ps_only() -> None:
    """Gives each session at a server of this process device filters, unless it has some.

    The session of a chief or worker then sees the ps and its own task, so it neither waits for
    other workers nor fails with them.
    """
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.python.client import session
    from tensorflow.python.training import server_lib

    from tensorwire.cluster import TRAINING_JOBS, device_filters

    filters: dict[str, list[str]] = {}  # by the server's target
    start = _original(server_lib.Server.__init__)
    open_session = _original(session.BaseSession.__init__)

    @functools.wraps(start)
    def start_server(self: Any, *args: Any, **kwargs: Any) -> None:
        start(self, *args, **kwargs)
        definition = self.server_def
        if definition.job_name in TRAINING_JOBS:
            jobs = server_lib.ClusterSpec(definition.cluster).as_dict()
            filters[self.target] = device_filters(jobs, definition.job_name, definition.task_index)

    @functools.wraps(open_session)
    def open_filtered(self: Any, target: Any = "", graph: Any = None, config: Any = None) -> None:
        own = filters.get(target) if isinstance(target, str) else None
        given = config_pb2.ConfigProto() if config is None else config
        if own and isinstance(given, config_pb2.ConfigProto) and not given.device_filters:
            config = config_pb2.ConfigProto(device_filters=own)
            config.MergeFrom(given)  # into a new one: the caller's object is not changed
        open_session(self, target, graph, config)

    server_lib.Server.__init__ = start_server
    session.BaseSession.__init__ = open_filtered
