"""Runs in the pod of a task that serves the job, and ends when the job has ended.

The task is a sidecar of this process, so Kubernetes restarts the task while this process runs, and
ends it afterwards. A label marks the Jobs whose end ends the job; the API server reports their
state. Needs only the standard library, because it runs next to every ps.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorwire.k8s.state import condition, may_come

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_INTERVAL_S = 5.0
_ANSWER_S = 10.0
# A submission creates all objects within seconds. If none exists after this time, the submission
# was interrupted.
_APPEARANCE_S = 900.0


class Deciders:
    """The state of the Jobs whose end ends the job."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._seen: set[str] = set()

    @property
    def any_seen(self) -> bool:
        return bool(self._seen)

    def are_running(self, jobs: Sequence[Mapping[str, Any]]) -> bool:
        """True if, by the API server's current list, a deciding Job runs or does not exist yet.

        A Job that disappeared was deleted and counts as ended. A failed Job ends the job.
        """
        names = {str(job["metadata"]["name"]) for job in jobs}
        self._seen |= names
        ended = self._seen - names
        for job in jobs:
            if condition(job, "Failed"):
                return False
            if condition(job, "Complete") or may_come(job):  # nobody waits for who may come
                ended.add(str(job["metadata"]["name"]))
        return len(ended) < self._expected


def list_jobs(server: str, namespace: str, job: str, account: Path = ACCOUNT) -> list[Any]:
    """The deciding Jobs of `job`. Raises OSError or ValueError without a valid answer."""
    selector = f"tensorwire/job={job},tensorwire/decides=true"
    query = urllib.parse.urlencode({"labelSelector": selector})
    request = urllib.request.Request(
        f"{server}/apis/batch/v1/namespaces/{namespace}/jobs?{query}",
        # Read again each time, because Kubernetes renews the token.
        headers={"Authorization": f"Bearer {(account / 'token').read_text()}"},
    )
    context = None
    if server.startswith("https:"):
        context = ssl.create_default_context(cafile=str(account / "ca.crt"))
    with urllib.request.urlopen(request, timeout=_ANSWER_S, context=context) as answer:
        return list(json.load(answer)["items"])


def wait(
    server: str,
    namespace: str,
    job: str,
    expected: int,
    account: Path = ACCOUNT,
    interval_s: float = _INTERVAL_S,
) -> None:
    """Returns when the job has ended and its serving tasks are no longer needed."""
    deciders = Deciders(expected)
    appear_by = time.monotonic() + _APPEARANCE_S
    last_problem = ""
    while True:
        try:
            if not deciders.are_running(list_jobs(server, namespace, job, account)):
                _say(f"the job {job} has ended")
                return
            problem = ""
        except (OSError, ValueError, KeyError) as error:
            problem = f"cannot read the state of the job {job} ({error}); trying again"
            if isinstance(error, urllib.error.HTTPError) and error.code == 403:
                problem += "; this pod's service account must be allowed to list jobs"
        if problem and problem != last_problem:
            _say(problem)
        last_problem = problem
        if not problem and not deciders.any_seen and time.monotonic() > appear_by:
            _say(f"the job {job} was not created")
            return
        time.sleep(interval_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", required=True, help="name of the job")
    parser.add_argument("--jobs", required=True, type=int, help="number of its deciding Jobs")
    arguments = parser.parse_args()
    # The first process of a container ignores SIGTERM by default. Only the end of the job is a
    # success; a pod that is evicted with status 0 would not be replaced.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    address = f"[{host}]" if ":" in host else host
    server = f"https://{address}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    wait(server, os.environ["POD_NAMESPACE"], arguments.job, arguments.jobs)


def _say(line: str) -> None:
    sys.stderr.write(f"tensorwire: {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
