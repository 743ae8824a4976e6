"""Others' test suites that run on both protocols: which there are, and where their files lie."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Project:
    """A repository, and the installed distributions whose tests it holds."""

    name: str
    distributions: tuple[str, ...]
    version_file: str
    version: str
    """A pattern that finds the version in that file."""


TENSORFLOW = Project(
    "tensorflow",
    ("tensorflow-cpu", "tensorflow"),
    "tensorflow/tf_version.bzl",
    r'TF_VERSION = "([\d.]+)"',
)
OLDER_TENSORFLOW = Project(  # until 2.18
    "tensorflow",
    ("tensorflow-cpu", "tensorflow"),
    "tensorflow/tools/pip_package/setup.py",
    r"_VERSION = '([\d.]+)'",
)
TF_KERAS = Project("tf-keras", ("tf-keras",), "tf_keras/__init__.py", r'__version__ = "([\d.]+)"')
ESTIMATOR = Project(
    "estimator",
    ("tensorflow-estimator",),
    "tensorflow_estimator/tools/pip_package/setup.py",
    r"_VERSION = '([\d.]+)'",
)


@dataclass(frozen=True)
class Suite:
    """A file with tests."""

    name: str
    path: str
    """Within a checkout of a project, or of this folder."""
    projects: tuple[Project, ...] = ()
    """Whose it is, none if the installed TensorFlow carries the tests."""
    alone: bool = False
    """Each test in its own process: a coordinator of an earlier one would go on in the same."""
    tests: str = ""
    """A pattern of names of tests; the others of the file have nothing to do with servers."""
    env: dict[str, str] = field(default_factory=dict)


def _of(
    folder: str, *names: str, alone: bool = False, tests: str = "", graphs: bool = False
) -> list[Suite]:
    projects = (TENSORFLOW, OLDER_TENSORFLOW)
    # Some are written for a TensorFlow without eager execution, which theirs is at that place.
    env = {"TENSORWIRE_TESTS_GRAPHS": "1"} if graphs else {}
    return [
        Suite(name, f"tensorflow/python/{folder}/{name}.py", projects, alone, tests, env)
        for name in names
    ]


def _of_keras(*names: str, alone: bool = False) -> list[Suite]:
    legacy = {"TF_USE_LEGACY_KERAS": "1"}
    return [
        Suite(f"keras {name}", f"tf_keras/distribute/{name}.py", (TF_KERAS,), alone, env=legacy)
        for name in names
    ]


FAULT_TOLERANCE = Suite("fault_tolerance_test_base", "coordinator_faults.py", alone=True)
SUITES = [
    FAULT_TOLERANCE,
    *_of(
        "training",
        "server_lib_test",
        "server_lib_multiple_containers_test",
        "server_lib_same_variables_clear_container_test",
        "server_lib_same_variables_clear_test",
        "server_lib_same_variables_no_clear_test",
        "server_lib_sparse_job_test",
        "sync_replicas_optimizer_test",
    ),
    *_of("client", "session_clusterspec_prop_test", "session_list_devices_test", graphs=True),
    *_of("client", "session_partial_run_test", tests="Dist", graphs=True),
    *_of("eager", "remote_test", "remote_execution_test"),
    # Each of its tests leaves a thousand threads of servers behind.
    *_of("eager", "remote_cluster_test", alone=True),
    *_of("distribute", "parameter_server_strategy_test"),
    *_of("distribute", "parameter_server_strategy_v2_test", "distributed_table_test"),
    *_of("distribute/coordinator", "cluster_coordinator_test", "metric_utils_test"),
    *_of("distribute/coordinator", "get_task_states_test", alone=True),
    *_of("distribute/coordinator", "fault_tolerance_test", alone=True, tests="^Init"),
    *_of("distribute/coordinator", "fault_tolerance_coordination_service_test", alone=True),
    *_of_keras("parameter_server_evaluation_test", "dataset_creator_model_fit_ps_only_test"),
    *_of_keras("parameter_server_exact_evaluation_test", alone=True),
    *_of_keras("sharded_variable_test"),
    Suite(
        "estimator training_test",
        "tensorflow_estimator/python/estimator/training_test.py",
        (ESTIMATOR,),
    ),
]


class Absent(Exception):
    """A suite cannot be had, and why."""


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def find(suite: Suite, sources: Path | None, installed: dict[str, str]) -> Path:
    """The file of a suite. Raises Absent if it cannot be had.

    A checkout is SOURCES itself or a folder in it, and must have the minor version of the installed
    distribution.
    """
    if not suite.projects:
        return Path(__file__).with_name(suite.path)
    project = suite.projects[0]
    have = next((installed[name] for name in project.distributions if name in installed), None)
    if have is None:
        raise Absent(f"{project.name} is not installed")
    missing = f"no checkout of {project.name} {_minor(have)}"
    if sources is None:
        raise Absent(f"{missing}: SOURCES is not given")
    folders = [sources, *sorted(each for each in sources.iterdir() if each.is_dir())]
    for folder in folders:
        for project in suite.projects:
            version_file = folder / project.version_file
            if not version_file.is_file():
                continue
            found = re.search(project.version, version_file.read_text())
            if found is None or _minor(found[1]) != _minor(have):
                continue
            file = folder / suite.path
            if not file.is_file():
                raise Absent(f"{project.name} {_minor(have)} has no such file")
            return file
    raise Absent(f"{missing} in SOURCES")
