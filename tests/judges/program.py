"""Runs a file with tests that is made for grpc on another protocol; run.py starts it.

TEST_FILE names the file and PROTOCOL the protocol. The file's own text is executed here, as the
main module, with each "grpc" in its strings replaced; of TensorFlow, the places are patched where a
server, an eager context or a resolver learns its protocol. `--list FILE` writes the names of the
tests instead.

run.py copies this file to a name that does not end in .py, which TensorFlow's runner of several
processes demands. That runner forks its tasks from a server of `multiprocessing`, which has
executed this file as `__mp_main__`.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import json
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import multiprocessing.util
import os
import re
import sys
import unittest
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.distribute import multi_worker_test_base
from tensorflow.python.distribute.cluster_resolver import SimpleClusterResolver
from tensorflow.python.eager import context
from tensorflow.python.training import server_lib

import tensorwire.tf  # noqa: F401
from tensorwire.bench.lab.ports import PortLease

PROTOCOL = os.environ["PROTOCOL"]
TEST_FILE = Path(os.environ["TEST_FILE"])
# Targets of sessions stay: those of a server on grpc++ begin with grpc:// too.
_GRPC = re.compile(r"\bgrpc\b(?!\+|://)")


class _OnProtocol(ast.NodeTransformer):
    """Replaces grpc in string constants: protocols, and texts that are expected."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, str):
            replaced = ast.Constant(_GRPC.sub(PROTOCOL, node.value), node.kind)
            return ast.copy_location(replaced, node)
        return node

    # A wheel of tf-keras has the repository's folder tf_keras as tf_keras/src.
    def visit_Import(self, node: ast.Import) -> ast.Import:
        for each in node.names:
            if each.name == "tf_keras":
                each.name = "tf_keras.src"
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        root, dot, rest = (node.module or "").partition(".")
        if root == "tf_keras" and not node.level:
            node.module = f"tf_keras.src{dot}{rest}"
        return node


def _replace(server_def: Any) -> Any:
    if server_def.protocol == "grpc":
        server_def.protocol = PROTOCOL
    return server_def


def _patch_server_def(owner: Any, name: str) -> None:
    """Patches a method of the eager context whose first argument is a ServerDef."""
    stock = getattr(owner, name)

    @functools.wraps(stock)
    def patched(self: Any, server_def: Any, *arguments: Any, **options: Any) -> Any:
        return stock(self, _replace(server_def), *arguments, **options)

    setattr(owner, name, patched)


def _patch_tensorflow() -> None:
    make_server_def = server_lib._make_server_def
    server_lib._make_server_def = lambda *arguments: _replace(make_server_def(*arguments))
    _patch_server_def(context.Context, "set_server_def")
    _patch_server_def(context.Context, "update_server_def")
    make_resolver = SimpleClusterResolver.__init__

    def made(self: Any, *arguments: Any, **options: Any) -> None:
        make_resolver(self, *arguments, **options)
        if self._rpc_layer == "grpc":
            self._rpc_layer = PROTOCOL

    SimpleClusterResolver.__init__ = made
    # TensorFlow's own picks a port that is free now; a task that is killed must also get it two
    # seconds later. If it does not, a test waits for ever.
    multi_worker_test_base.pick_unused_port = PortLease().take


def _alias_xla() -> None:
    """Makes `xla` of TensorFlow's repository what the wheel has of it."""
    for name in ("", ".tsl", ".tsl.protobuf"):
        with contextlib.suppress(ImportError):
            sys.modules.setdefault(
                f"xla{name}", importlib.import_module(f"tensorflow.compiler.xla{name}")
            )


def _fork_server(path: object, arguments: Sequence[str], kept: Sequence[int]) -> int:
    """As `multiprocessing.util.spawnv_passfds`, but forks; the last argument is Python code."""
    pid = os.fork()
    if pid:
        return pid
    low = 3
    for descriptor in sorted(kept):
        os.closerange(low, descriptor)
        low = descriptor + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX"))
    del sys.argv[1:]
    try:
        exec(arguments[-1], {})
    finally:
        os._exit(0)


def _start_server() -> None:
    """Starts the server that tasks are forked from, before the runner does.

    The runner would execute this file for it, and once more for a helper that needs no TensorFlow.
    Here the server is a fork of this process, which has TensorFlow imported. If other threads run
    by now, it is executed: they would be missing in a fork.
    """
    multiprocessing.resource_tracker.ensure_running()
    with pytest.MonkeyPatch.context() as patch:
        if len(list(Path("/proc/self/task").iterdir())) == 1:
            patch.setattr(multiprocessing.util, "spawnv_passfds", _fork_server)
        multiprocessing.forkserver.ensure_running()


def _tests(suite: unittest.TestSuite) -> list[str]:
    names = []
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            names += _tests(each)
        else:
            # One with parameters has them after its name.
            names.append(each.id().removeprefix(f"{__name__}.").partition(" ")[0])
    return names


def _list_tests(into: str) -> None:
    names = _tests(unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"]))
    Path(into).write_text(json.dumps([name for name in names if ".test_session" not in name]))


def _is_main_block(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _execute(statements: list[ast.stmt]) -> None:
    module = ast.fix_missing_locations(ast.Module(statements, []))
    exec(compile(module, str(TEST_FILE), "exec", dont_inherit=True), globals())


_patch_tensorflow()
if os.environ.get("TENSORWIRE_TESTS_GRAPHS"):
    tf.compat.v1.disable_eager_execution()
_alias_xla()
_STATEMENTS = _OnProtocol().visit(ast.parse(TEST_FILE.read_text())).body
_execute([node for node in _STATEMENTS if not _is_main_block(node)])
if __name__ == "__main__":
    if sys.argv[1:2] == ["--list"]:
        _list_tests(sys.argv[2])
    else:
        # Tasks find the tests in the main module.
        _start_server()
        _execute([node for node in _STATEMENTS if _is_main_block(node)])
