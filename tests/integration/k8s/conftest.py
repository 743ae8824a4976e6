"""Fixtures of `k8s_cluster`; collects no tests if the client of Kubernetes is missing."""

import importlib.util

if importlib.util.find_spec("kubernetes") is None:
    collect_ignore_glob = ["test_*"]  # as in the environment of the oldest TensorFlow
else:
    from k8s_cluster.fixtures import claim, cluster, control_plane, kubectl, lab, run

    __all__ = ["claim", "cluster", "control_plane", "kubectl", "lab", "run"]
