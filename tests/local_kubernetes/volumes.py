"""The file system of a pod in a lab: this machine's, with the mounts of the pod's manifest."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from local_kubernetes.api import Api, Refused
from tensorwire.plugin.cache import cache_folder

Object = Mapping[str, Any]

# Arguments: triples of "ro" or "rw", a source and a target; then --, "ro" or "rw" for the image,
# the working directory, and the command.
SCRIPT = """set -e
while [ "$1" != -- ]; do
  mount --rbind "$2" "$3"
  [ "$1" = rw ] || mount -o remount,bind,ro "$3"
  shift 3
done
shift
[ "$1" = rw ] || mount -o remount,bind,ro /
cd "$2"
shift 2
exec "$@"
"""

_PRIVATE = ("/etc", "/run", "/mnt", "/tmp")
"""Folders that each pod has privately, and below which volumes can be mounted."""
_RENEW_AT = 0.8  # of a token's lifetime, as in the real kubelet


class NotMountable(Exception):
    """A volume cannot be mounted now. The message is for the pod's status."""


@dataclass
class PodFiles:
    """The folders of one pod, below `root`."""

    root: Path
    pod: Object
    etc: Path
    """The /etc of all pods of the namespace, with the names of services in its hosts file."""
    _renew_at: dict[Path, float] = field(default_factory=dict)

    def make(self, api: Api) -> None:
        """Fetches the contents of the volumes. Raises NotMountable, or exceptions of `api`."""
        shutil.rmtree(self.root, ignore_errors=True)
        for name in _PRIVATE[1:]:
            (self.root / name.lstrip("/")).mkdir(parents=True)
        (self.root / "tmp").chmod(0o1777)
        for volume in self.pod["spec"].get("volumes") or ():
            folder = self.root / "volumes" / volume["name"]
            folder.mkdir(parents=True)
            self._fill(api, volume, folder)
            self._own(folder)

    def renew_tokens(self, api: Api, *, now: bool = False) -> None:
        """Replaces service-account tokens that expire soon; with `now`, all of them."""
        for path, renew_at in list(self._renew_at.items()):
            if now or time.monotonic() > renew_at:
                for volume in self.pod["spec"].get("volumes") or ():
                    for source in (volume.get("projected") or {}).get("sources") or ():
                        name = (source.get("serviceAccountToken") or {}).get("path")
                        if path == self.root / "volumes" / volume["name"] / str(name):
                            self._write_token(api, source["serviceAccountToken"], path)
                            self._own(path)

    def remove(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def mounts(self, container: Object, claims: Mapping[str, Path]) -> list[str]:
        """The arguments of SCRIPT for a container, without the command.

        Args:
            claims: the folder of each of the pod's PersistentVolumeClaims.
        """
        volumes = {each["name"]: each for each in self.pod["spec"].get("volumes") or ()}
        read_only = bool((container.get("securityContext") or {}).get("readOnlyRootFilesystem"))
        image = "ro" if read_only else "rw"
        of_base = {base: self.root / base.lstrip("/") for base in _PRIVATE} | {"/etc": self.etc}
        words: list[str] = []
        for mount in sorted(container.get("volumeMounts") or (), key=lambda m: len(m["mountPath"])):
            volume, path = volumes[mount["name"]], _canonical(mount["mountPath"])
            source = self.root / "volumes" / volume["name"]
            if "persistentVolumeClaim" in volume:
                source = claims[volume["persistentVolumeClaim"]["claimName"]]
            if mount.get("subPath"):
                source = source / mount["subPath"]
            flag = "ro" if mount.get("readOnly") else "rw"
            base = next((b for b in _PRIVATE if path == b or path.startswith(b + "/")), None)
            if base is None:
                if not Path(path).is_dir():
                    raise NotMountable(
                        f"the lab cannot mount a volume at {path}: use a folder below "
                        f"{', '.join(_PRIVATE)}"
                    )
                words += [flag, str(source), path]
            elif path == base:
                of_base[base] = source
            else:
                place = of_base[base] / path[len(base) :].lstrip("/")
                place.mkdir(parents=True, exist_ok=True)
                words += [flag, str(source), str(place)]
        words += _with_the_image(of_base["/tmp"])
        # Sources may be below /tmp, so the private /tmp is mounted last.
        for base in _PRIVATE:
            own = base == "/tmp" or of_base[base] not in (self.etc, self.root / base.lstrip("/"))
            words += ["rw" if own else image, str(of_base[base]), base]
        return [*words, "--", image, str(container.get("workingDir") or "/")]

    def _fill(self, api: Api, volume: Object, folder: Path) -> None:
        if "emptyDir" in volume:
            folder.chmod(0o777)
        elif "configMap" in volume:
            self._write_config(api, volume["configMap"], folder)
        elif "secret" in volume:
            source = volume["secret"]
            data = _secret(api, self._namespace, source["secretName"])
            mode = int(source.get("defaultMode", 0o644))
            for name, path in _items(source, data):
                _write(folder / path, data[name], mode)
        elif "projected" in volume:
            for source in volume["projected"]["sources"]:
                self._project(api, source, folder)
        elif "persistentVolumeClaim" not in volume:
            (kind,) = set(volume) - {"name"}
            raise NotMountable(f"the lab does not support volumes of kind {kind}")

    def _project(self, api: Api, source: Object, folder: Path) -> None:
        if "serviceAccountToken" in source:
            token = source["serviceAccountToken"]
            self._write_token(api, token, folder / token["path"])
        elif "configMap" in source:
            self._write_config(api, source["configMap"], folder)
        elif "downwardAPI" in source:
            for item in source["downwardAPI"]["items"]:
                value = field_of(self.pod, item["fieldRef"]["fieldPath"])
                _write(folder / item["path"], value.encode(), 0o644)
        else:
            raise NotMountable(f"the lab cannot project {', '.join(source)}")

    def _write_config(self, api: Api, source: Object, folder: Path) -> None:
        data = config_map(api, self._namespace, source["name"])
        for name, path in _items(source, data):
            _write(folder / path, data[name].encode(), int(source.get("defaultMode", 0o644)))

    def _write_token(self, api: Api, wanted: Object, path: Path) -> None:
        lives_s = int(wanted.get("expirationSeconds", 3600))
        metadata = self.pod["metadata"]
        of_pod = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"]}
        audiences = [wanted["audience"]] if wanted.get("audience") else []
        account = self.pod["spec"].get("serviceAccountName") or "default"
        answer = api.create(
            f"/api/v1/namespaces/{self._namespace}/serviceaccounts/{account}/token",
            {
                "spec": {
                    "audiences": audiences,
                    "expirationSeconds": lives_s,
                    "boundObjectRef": {**of_pod, "uid": metadata["uid"]},
                }
            },
        )
        new = path.with_name(f".{path.name}")
        _write(new, answer["status"]["token"].encode(), 0o600)
        new.replace(path)
        self._renew_at[path] = time.monotonic() + _RENEW_AT * lives_s

    def _own(self, folder: Path) -> None:
        """Changes the files' group to the pod's fsGroup, if it has one."""
        group = (self.pod["spec"].get("securityContext") or {}).get("fsGroup")
        if group is None:
            return
        for path in (folder, *folder.rglob("*")):
            with contextlib.suppress(OSError):
                os.chown(path, -1, int(group))
                path.chmod(path.stat().st_mode | 0o040 | (0o010 if path.is_dir() else 0))

    @property
    def _namespace(self) -> str:
        return str(self.pod["metadata"]["namespace"])


def config_map(api: Api, namespace: str, name: str) -> dict[str, str]:
    """The texts of a ConfigMap. Raises NotMountable if it does not exist."""
    return _data(api, namespace, "configmap", name)


def _secret(api: Api, namespace: str, name: str) -> dict[str, bytes]:
    found = _data(api, namespace, "secret", name)
    return {key: base64.b64decode(value) for key, value in found.items()}


def _data(api: Api, namespace: str, kind: str, name: str) -> dict[str, str]:
    try:
        found = api.get(f"/api/v1/namespaces/{namespace}/{kind}s/{name}")
    except Refused as error:
        if error.status == 404:
            raise NotMountable(f'{kind} "{name}" not found') from None
        raise
    return dict(found.get("data") or {})


def field_of(pod: Object, path: str) -> str:
    """The value of a fieldRef. Raises NotMountable for unsupported fields."""
    for kind in ("labels", "annotations"):
        start = f"metadata.{kind}['"
        if path.startswith(start) and path.endswith("']"):
            return str((pod["metadata"].get(kind) or {}).get(path[len(start) : -2], ""))
    if path in ("metadata.name", "metadata.namespace", "metadata.uid"):
        return str(pod["metadata"][path.partition(".")[2]])
    if path in ("spec.nodeName", "spec.serviceAccountName"):
        return str(pod["spec"].get(path.partition(".")[2], ""))
    raise NotMountable(f"the lab does not support the field {path}")


def copy_of_etc(folder: Path) -> None:
    """Copies this machine's /etc, without sockets, pipes and devices."""

    def unreadable(parent: str, _: Sequence[str]) -> list[str]:
        return [
            entry.name
            for entry in os.scandir(parent)
            if not (
                entry.is_dir(follow_symlinks=False)
                or entry.is_file(follow_symlinks=False)
                or entry.is_symlink()
            )
        ]

    shutil.copytree("/etc", folder, symlinks=True, ignore=unreadable)
    (folder / "hosts").unlink(missing_ok=True)
    (folder / "hosts").touch()


def _canonical(path: str) -> str:
    """The path with /var/run replaced by /run, as on this machine."""
    return path[4:] if path.startswith("/var/run/") else path.rstrip("/")


def _items(source: Object, data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if source.get("items"):
        return ((item["key"], item["path"]) for item in source["items"])
    return ((key, key) for key in data)


def _write(path: Path, data: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(0o600)
    path.write_bytes(data)
    path.chmod(mode)


def _with_the_image(folder: Path) -> list[str]:
    """Mounts parts of the image that are below /tmp into the pod's private /tmp."""
    paths = {*sys.path, sys.prefix, sys.base_prefix, str(cache_folder())}
    tops = {Path(*Path(p).parts[:3]) for p in paths if p.startswith("/tmp/")}
    words: list[str] = []
    for top in sorted(each for each in tops if each.is_dir()):
        (folder / top.name).mkdir(exist_ok=True)
        words += ["rw", str(top), str(folder / top.name)]
    return words
