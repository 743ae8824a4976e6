"""`tensorwire run`: the script runs in the same environment as with plain Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tensorwire.errors import TensorwireError
from tensorwire.plugin import loader
from tensorwire.run import environment as run_environment
from tensorwire.settings import REWRITES

SHOW = """
import json, os, sys
print(json.dumps({
    "argv": sys.argv, "name": __name__, "file": __file__, "path0": sys.path[0],
    "path": sys.path, "spec": __spec__ is None,
    "main": sys.modules["__main__"].__file__,
}))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SHOW)
    return path


def test_a_script_sees_what_python_would_show_it(
    python: Any, tensorwire: Any, script: Path
) -> None:
    plain = python(script, "--flag", "a b")
    ours = tensorwire("run", script, "--flag", "a b")
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout == plain.stdout
    assert ours.stderr == plain.stderr == ""


def test_a_module_runs_as_with_dash_m(python: Any, tensorwire: Any, script: Path) -> None:
    env = {"PYTHONPATH": str(script.parent)}
    plain = python("-m", "script", "--help", env=env)
    ours = tensorwire("run", "-m", "script", "--help", env=env)
    assert ours.stdout == plain.stdout, ours.stderr


def test_options_after_the_script_are_the_scripts(tensorwire: Any, script: Path) -> None:
    done = tensorwire("run", script, "--protocol", "grpc", "--help", "-m")
    assert '"--protocol", "grpc", "--help", "-m"' in done.stdout


@pytest.mark.parametrize(
    "code", ["import sys; sys.exit(7)", "sys", "raise RuntimeError('mine')", "def", "1/0"]
)
def test_the_scripts_own_failure_is_shown_and_returned_as_python_does(
    python: Any, tensorwire: Any, tmp_path: Path, code: str
) -> None:
    script = tmp_path / "fails.py"
    script.write_text(code + "\n")
    plain, ours = python(script), tensorwire("run", script)
    assert ours.returncode == plain.returncode != 0
    assert ours.stderr == plain.stderr


def test_python_processes_of_the_script_wait_for_tensorflow_too(
    tensorwire: Any, tmp_path: Path
) -> None:
    (tmp_path / "tensorflow.py").write_text("")  # imported only after the hook is installed
    script = tmp_path / "parent.py"
    script.write_text(
        "import multiprocessing, os, subprocess, sys\n"
        "def hooked():\n"
        "    return [type(f).__name__ for f in sys.meta_path][0] == '_AfterImport'\n"
        "if __name__ == '__main__':\n"
        "    child = 'import sys; print(type(sys.meta_path[0]).__name__)'\n"
        "    print(subprocess.check_output([sys.executable, '-c', child], text=True).strip())\n"
        "    for how in ('spawn', 'fork', 'forkserver'):\n"
        "        with multiprocessing.get_context(how).Pool(1) as pool:\n"
        "            print(how, pool.apply(hooked))\n"
    )
    done = tensorwire("run", "--protocol", "grpc++", script)
    assert done.stdout.split("\n")[:4] == [
        "_AfterImport",
        "spawn True",
        "fork True",
        "forkserver True",
    ], done.stderr


def test_a_sitecustomize_of_the_users_own_still_runs(tensorwire: Any, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.users_own = 41\n")
    script = tmp_path / "script.py"
    script.write_text("import sitecustomize; print(users_own, sitecustomize.__file__)\n")
    done = tensorwire("run", script, env={"PYTHONPATH": str(tmp_path)})
    assert done.stdout == f"41 {tmp_path / 'sitecustomize.py'}\n", done.stderr


def test_asking_for_fusion_reaches_the_plugin_through_the_environment() -> None:
    plain = run_environment.environment(None, debug=False, inherited={})
    fused = run_environment.environment(
        None, debug=False, inherited=plain, words=["tensor_fuse", "bfloat16"]
    )
    inner = run_environment.environment(None, debug=False, inherited=fused)
    other = run_environment.environment(None, debug=False, inherited=fused, words=["float16"])
    assert [env.get(REWRITES) for env in (plain, fused, inner, other)] == [
        *(None, "tensor_fuse,bfloat16", "tensor_fuse,bfloat16"),
        "tensor_fuse,float16",
    ]


def test_a_run_within_a_run_takes_the_inner_protocol() -> None:
    outer = run_environment.environment("grpc++", debug=False, inherited={"PYTHONPATH": "/mine"})
    inner = run_environment.environment("grpc", debug=False, inherited=outer)
    assert inner[run_environment.PROTOCOL_VARIABLE] == "grpc"
    assert inner["PYTHONPATH"] == outer["PYTHONPATH"]
    assert inner["PYTHONPATH"].endswith(":/mine")


def test_a_plugin_that_cannot_be_built_ends_the_script_with_one_line(
    tensorwire: Any, tmp_path: Path
) -> None:
    (tmp_path / "tensorflow.py").write_text("__version__ = '2.10.0'\n")
    script = tmp_path / "script.py"
    script.write_text(
        "try:\n    import tensorflow\nexcept Exception:\n    pass\nprint('went on')\n"
    )
    done = tensorwire("run", script)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("tensorwire: error: TensorFlow 2.10.0 is too old")
    assert done.stderr.count("\n") == 1


def test_counters_of_a_plugin_that_is_not_loaded_say_so() -> None:
    with pytest.raises(TensorwireError, match=r"import tensorwire\.tf"):
        loader.stats()
