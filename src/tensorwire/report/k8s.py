"""Jobs on Kubernetes: tables, and lines that follow a running job."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorwire.k8s.layout import LAYOUTS, SCENARIOS, JobCase, servers
from tensorwire.k8s.state import FAILED, SUCCEEDED, JobState, Progress
from tensorwire.report.section import Section, Table


def cases_section(cases: Sequence[JobCase]) -> Section:
    """One row per case and layout."""
    columns = ["scenario", "layout", "case", "servers", "workers", "ps", "workers a server"]
    groups = [
        [
            [
                *(SCENARIOS[layout], layout, case.name, str(len(servers(layout, case.groups)))),
                *map(str, (case.workers, case.ps, case.workers_per_node)),
            ]
            for case in cases
        ]
        for layout in LAYOUTS
    ]
    return Section("Cases", tables=[Table("Cases", columns, groups, text_columns=3)])


def tasks_section(state: JobState) -> Section:
    """One row per task."""
    columns = ["task", "phase", "restarts", "node", "pod"]
    rows = [
        [task.name, task.phase, str(task.restarts or ""), task.node or "", task.pod or ""]
        for task in state.tasks
    ]
    return Section("Tasks", tables=[Table("", columns, [rows], text_columns=len(columns))])


def state_line(name: str, state: JobState, progress: Progress | None) -> str:
    """The job in one line."""
    if state.outcome == SUCCEEDED:
        return f"{name}: succeeded"
    if state.outcome == FAILED:
        return f"{name}: failed"
    if not state.tasks:
        return f"{name}: its tasks are not made yet"
    words = {
        "succeeded": "done",
        "ready": "ready",
        "starting": "starting",
        "lost": "on a node that does not answer",
        "pending": "waiting for a node",
        "absent": "not made yet",
        "failed": "failed and about to be replaced",
    }
    counts = [f"{state.count(p)} {text}" for p, text in words.items() if state.count(p)]
    line = f"{name}: of {len(state.tasks)} tasks {', '.join(counts)}"
    if progress is None:
        return line
    return (
        f"{line}; {progress.steps} steps, {progress.steps_per_s:.1f} steps/s, "
        f"{progress.mb_per_s:.1f} MB/s"
    )


class StateLines:
    """Prints a job's state whenever it changes, and each trouble once."""

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        self._name = name
        self._say = say
        self._said: set[str] = set()
        self._last = ""

    def __call__(self, state: JobState, progress: Progress | None) -> None:
        line = state_line(self._name, state, progress)
        if line != self._last:
            self._say(line)
            self._last = line
        troubles = state.all_troubles
        for trouble in troubles:
            if trouble not in self._said:
                self._say(f"  {trouble}")
        # A trouble that disappeared and returns is printed again.
        self._said = set(troubles)
