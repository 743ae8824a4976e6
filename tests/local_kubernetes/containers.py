"""Pods of a lab and their containers: starts, restarts and ends them, and reports their status.

This module does not use the API server. A container is a process; the caller of `step` starts it.
"""

from __future__ import annotations

import datetime
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from local_kubernetes.node_lab import inside
from tensorwire.bench.lab import Host, TaskProcess

Object = Mapping[str, Any]
Start = Callable[[Object], TaskProcess]
"""Starts the process of a container, by its specification."""

_RESTART_DELAY_S = (0.5, 10.0)
"""After the first failure, and at most. Kubernetes itself waits from 10 s to five minutes."""


def now() -> str:
    """The current time in Kubernetes' format."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Probe:
    """A tcpSocket probe, which checks that a process listens."""

    wanted: Object
    port: int
    _next_s: float = 0.0
    _failures: int = 0

    @property
    def has_failed(self) -> bool:
        return self._failures >= int(self.wanted.get("failureThreshold", 3))

    def look(self, host: Host) -> bool | None:
        """The result of the probe; None if it is not due."""
        if time.monotonic() < self._next_s:
            return None
        self._next_s = time.monotonic() + min(1.0, float(self.wanted.get("periodSeconds", 10)))
        try:
            inside(
                host, lambda: socket.create_connection((host.address, self.port), timeout=1)
            ).close()
            self._failures = 0
            return True
        except OSError:
            self._failures += 1
            return False


@dataclass(eq=False)
class Container:
    """One container of a pod."""

    spec: Object
    always: bool
    """True if it is restarted after every exit status."""
    on_failure: bool
    """True if it is restarted after a failure."""
    process: TaskProcess | None = None
    restarts: int = 0
    started: bool = False
    ready: bool = False
    since: str = ""
    last_end: dict[str, Any] | None = None
    waiting: tuple[str, str] = ("ContainerCreating", "")
    _again_at_s: float = 0.0
    _probes: dict[str, Probe] = field(default_factory=dict)
    _killed_by_probe: bool = False

    @property
    def name(self) -> str:
        return str(self.spec["name"])

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The final exit status, as in a shell; None if it runs or will be restarted."""
        if self.process is None or (code := self.process.poll()) is None:
            return None
        if self.always or (self.on_failure and code != 0):
            return None
        return code if code >= 0 else 128 - code

    def step(self, host: Host, start: Start) -> None:
        """Starts the container if it is due, and runs its probes."""
        if self.process is not None and self.process.poll() is not None:
            if self.exit_code is not None:
                self.ready = False
                return
            if self.last_end is None or self.last_end["process"] is not self.process:
                self._note_end()
        if not self.runs:
            if time.monotonic() < self._again_at_s:
                return
            if self.process is not None:
                self.restarts += 1
            self._start(start)
            return
        self._look(host)

    def end(self, number: int) -> None:
        """Sends a signal to its processes."""
        if self.process is not None:
            self.process.signal(number)

    def status(self) -> dict[str, Any]:
        """The containerStatus of the API."""
        state: dict[str, Any]
        if self.process is None:
            state = {"waiting": {"reason": self.waiting[0], "message": self.waiting[1]}}
        elif self.process.poll() is None:
            state = {"running": {"startedAt": self.since}}
        elif self.exit_code is not None:
            state = {"terminated": self._ended()}
        else:
            state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off restarting"}}
        last = self.last_end
        return {
            "name": self.name,
            "image": self.spec["image"],
            "imageID": "",
            "ready": self.ready and self.runs,
            "started": self.started and self.runs,
            "restartCount": self.restarts,
            "state": state,
            "lastState": {"terminated": last["ended"]} if last else {},
        }

    def _start(self, start: Start) -> None:
        self._probes = {}
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            if wanted := self.spec.get(kind):
                self._probes[kind] = Probe(wanted, self._port(wanted["tcpSocket"]["port"]))
        self._killed_by_probe = False
        self.started = "startupProbe" not in self._probes
        self.ready = self.started and "readinessProbe" not in self._probes
        self.since = now()
        self.process = start(self.spec)

    def _look(self, host: Host) -> None:
        if not self.started:
            startup = self._probes["startupProbe"]
            if startup.look(host):
                self.started = True
                self.ready = "readinessProbe" not in self._probes
            elif startup.has_failed:
                self._kill()
            return
        readiness = self._probes.get("readinessProbe")
        if readiness is not None and (seen := readiness.look(host)) is not None:
            self.ready = seen or (self.ready and not readiness.has_failed)
        alive = self._probes.get("livenessProbe")
        if alive is not None and alive.look(host) is False and alive.has_failed:
            self._kill()

    def _kill(self) -> None:
        if not self._killed_by_probe:
            self._killed_by_probe = True
            self.end(signal.SIGKILL)

    def _note_end(self) -> None:
        self.ready = self.started = False
        self.last_end = {"process": self.process, "ended": self._ended()}
        shortest, longest = _RESTART_DELAY_S
        self._again_at_s = time.monotonic() + min(longest, shortest * 2**self.restarts)

    def _ended(self) -> dict[str, Any]:
        assert self.process is not None
        code = self.process.poll() or 0
        code = code if code >= 0 else 128 - code
        reason = "Completed" if code == 0 else "Error"
        return {"exitCode": code, "reason": reason, "startedAt": self.since, "finishedAt": now()}

    def _port(self, named: str | int) -> int:
        for port in self.spec.get("ports") or ():
            if port.get("name") == named:
                return int(port["containerPort"])
        return int(named)


@dataclass(eq=False)
class RunningPod:
    """A pod on a host of the lab."""

    manifest: Object
    host: Host
    init: list[Container]
    main: list[Container]
    began: str = field(default_factory=now)
    refusal: tuple[str, str] | None = None
    """Why its containers cannot be created: the API's reason, and a message."""
    prepare_at_s: float = 0.0
    """Time of the next attempt to create them, by the monotonic clock."""
    _ends_at_s: float | None = None
    _asked: set[str] = field(default_factory=set)
    _initialized_once: bool = False

    @staticmethod
    def of(manifest: Object, host: Host) -> RunningPod:
        spec = manifest["spec"]
        policy = spec.get("restartPolicy", "Always")
        init = [
            Container(each, each.get("restartPolicy") == "Always", policy != "Never")
            for each in spec.get("initContainers") or ()
        ]
        main = [
            Container(each, policy == "Always", policy != "Never") for each in spec["containers"]
        ]
        return RunningPod(manifest, host, init, main)

    @property
    def uid(self) -> str:
        return str(self.manifest["metadata"]["uid"])

    @property
    def containers(self) -> list[Container]:
        return [*self.init, *self.main]

    @property
    def is_ending(self) -> bool:
        return self._ends_at_s is not None

    @property
    def has_ended(self) -> bool:
        """True if no container runs, or will run."""
        if any(container.runs for container in self.containers):
            return False
        return self.is_ending or self._main_has_ended or self._init_has_failed

    @property
    def phase(self) -> str:
        if self.has_ended:
            codes = [container.exit_code for container in self.main]
            return "Succeeded" if all(code == 0 for code in codes) else "Failed"
        return "Running" if self._initialized_once else "Pending"

    def step(self, start: Start) -> None:
        """Performs due work: starts containers in order, ends the sidecars of a finished pod."""
        if self.is_ending or self._main_has_ended or self._init_has_failed:
            self._end_rest()
            return
        for container in self.init:
            if container.exit_code == 0:
                continue
            container.step(self.host, start)
            serves = container.always and container.started and container.runs
            if not serves and not self._initialized_once:
                return
        self._initialized_once = True
        for container in self.main:
            container.step(self.host, start)

    def end(self, grace_s: float) -> None:
        """Begins to end the pod; containers that still run after `grace_s` seconds are killed."""
        ends_at_s = time.monotonic() + grace_s
        if self._ends_at_s is None or ends_at_s < self._ends_at_s:
            self._ends_at_s = ends_at_s
        self._end_rest()

    def status(self, host_address: str) -> dict[str, Any]:
        """The pod's status in the API."""
        phase = self.phase
        ready = phase == "Running" and all(c.ready and c.runs for c in self.main)
        ready = ready and all(c.ready and c.runs for c in self.init if c.always)
        for container in self.containers:
            if self.refusal is not None and container.process is None:
                container.waiting = self.refusal
            elif container in self.main and not self._initialized_once:
                container.waiting = ("PodInitializing", "")
        conditions = {
            "Initialized": self._initialized_once,
            "ContainersReady": ready,
            "Ready": ready,
        }
        status: dict[str, Any] = {
            "phase": phase,
            "startTime": self.began,
            "hostIP": host_address,
            "hostIPs": [{"ip": host_address}],
            "podIP": self.host.address,
            "podIPs": [{"ip": self.host.address}],
            "conditions": [
                {"type": kind, "status": str(holds)} for kind, holds in conditions.items()
            ],
            "containerStatuses": [container.status() for container in self.main],
        }
        if self.init:
            status["initContainerStatuses"] = [container.status() for container in self.init]
        return status

    @property
    def _main_has_ended(self) -> bool:
        return all(container.exit_code is not None for container in self.main)

    @property
    def _init_has_failed(self) -> bool:
        return any(container.exit_code not in (None, 0) for container in self.init)

    def _end_rest(self) -> None:
        """Ends the main containers and then the sidecars, each with SIGTERM before SIGKILL."""
        if self._ends_at_s is None:
            grace_s = float(self.manifest["spec"].get("terminationGracePeriodSeconds") or 30)
            self._ends_at_s = time.monotonic() + grace_s
        late = time.monotonic() > self._ends_at_s
        first = self.main if any(container.runs for container in self.main) else self.init
        for container in first:
            if late:
                container.end(signal.SIGKILL)
            elif container.runs and container.name not in self._asked:
                self._asked.add(container.name)
                container.end(signal.SIGTERM)
