"""Layouts: the nodes of a case, and their labels."""

from __future__ import annotations

import pytest

from k8s_cluster.jobs import job
from tensorwire.errors import UsageError
from tensorwire.k8s.layout import COLOCATED, ISOLATED, PUBLISHED, label_command, plan_labels


def test_a_layout_that_cannot_be_had_is_refused_with_what_would_fit() -> None:
    with pytest.raises(UsageError, match="51 workers need 6 ps, not 5"):
        job(51, 5, layout=COLOCATED, wanted_workers_per_node=10)


def test_labels_of_another_case_go_when_a_node_is_labelled() -> None:
    assert label_command("n1", plan_labels(PUBLISHED[0], COLOCATED, ["n1"])["n1"]) == (
        "kubectl label node n1 --overwrite SCENCE=1 CASE=1 INDEX=0 TYPE-"
    )
    removed = plan_labels(PUBLISHED[0], COLOCATED, ["n1", "n2"], remove=True)
    assert label_command("n2", removed["n2"]).endswith("SCENCE- CASE- INDEX- TYPE-")


def test_too_few_nodes_to_label_are_refused() -> None:
    with pytest.raises(UsageError, match="case 2, isolated, needs 10 nodes, not 2"):
        plan_labels(PUBLISHED[1], ISOLATED, ["n1", "n2"])
    with pytest.raises(UsageError, match="named twice"):
        plan_labels(PUBLISHED[0], ISOLATED, ["n1", "n1"])
