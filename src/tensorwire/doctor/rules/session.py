"""How sessions were opened."""

from __future__ import annotations

from tensorwire.doctor.evidence import Evidence, Finding


def no_device_filters(evidence: Evidence) -> Finding | None:
    """Sessions that need every worker alive."""
    sessions = evidence.sessions
    if sessions is None or not sessions.without_device_filters:
        return None
    names = ", ".join(sessions.without_device_filters)
    return Finding(
        rule="no-device-filters",
        title="Sessions without device_filters: one lost or finished worker stalls the others",
        cost=None,
        evidence=(
            f"{names} opened a session that names no device_filters, so it waits for every task "
            "of the cluster whenever it starts or recovers.",
        ),
        confidence="high",
        change="Give it config=tensorwire.tf.ConfigProto(cluster=..., job_name=..., "
        "task_index=...), which sets them.",
        is_risk=True,
    )
