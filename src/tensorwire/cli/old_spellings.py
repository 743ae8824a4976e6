"""Options that have a new name; the old one works for this version, with a warning."""

from __future__ import annotations

import logging
from collections.abc import Sequence

_log = logging.getLogger(__name__)

_OF_HOSTS = {"--peer-timeout": "--timeout"}
_OF_JOB = {"--up-within": "--timeout"}
_NEW = {
    **{f"bench {name}": _OF_HOSTS for name in ("tcp", "rpc", "transfer", "steps", "strategy")},
    **{f"bench {name}": _OF_HOSTS for name in ("serve", "train")},
    "bench tails": {"--bulk-mb": "--data-mb"},
    "demo": {"--protocol": "--protocols"},
    "doctor": {**_OF_HOSTS, "--plan": "--placement-file"},
    "k8s compare": _OF_JOB,
    "k8s status": {"--watch": "--follow"},
    "k8s submit": {**_OF_JOB, "--wait": "--follow"},
    "place": {"--batch": "--batch-size", "--deadline": "--timeout", "--strategy": "--placement"},
    "plan": {"--batch": "--batch-size", "--protocol": "--protocols", "--target": "--steps-per-s"},
    "top": {"--json": "--output=json"},
}
"""By the command: the new name of each old one."""


def replace(command: str, arguments: Sequence[str]) -> list[str]:
    """The arguments of a command with the new names of its options; warns of old names."""
    new = _NEW.get(command, {})
    replaced: list[str] = []
    for index, argument in enumerate(arguments):
        if argument == "--":  # what follows is a script's
            return [*replaced, *arguments[index:]]
        name, equals, value = argument.partition("=")
        if name in new:
            _log.warning(
                "tensorwire: %s is now %s; the old name works for this version only",
                name,
                new[name],
            )
        replaced.append(new.get(name, name) + equals + value)
    return replaced
