"""The compiled plug-ins in the package, which `make wheel` puts there.

Each is in a folder below ``_native/prebuilt`` that is named by its content. ``index.json`` maps
fingerprints (`TensorFlowInstall.fingerprint`) to plug-ins. A plug-in that does not fit is never
loaded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tensorwire import dataclass_json
from tensorwire.plugin.compiler import NoCompilerError
from tensorwire.plugin.tensorflow_install import TensorFlowInstall

INDEX = "index.json"


@dataclass(frozen=True)
class Plugin:
    """A compiled plug-in in the package."""

    file: str
    """Its path below the folder of the plug-ins."""
    tensorflows: Sequence[str]
    """The distributions that it was made for: "tensorflow-cpu 2.21.0"."""


@dataclass(frozen=True)
class Carried:
    """The compiled plug-ins of a package; none if it was installed from source."""

    folder: Path | None = None
    source: str = ""
    """Digest of the source that all were compiled from."""
    compiler: str = ""
    headers: Sequence[str] = ()
    """TensorFlow's headers that at least one of the plug-ins includes."""
    plugins: Mapping[str, Plugin] = field(default_factory=dict)
    """Plug-ins by fingerprint."""

    def fitting(self, tensorflow: TensorFlowInstall) -> Path | None:
        """The plug-in for `tensorflow`; None if there is none."""
        if self.folder is None:
            return None
        plugin = self.plugins.get(tensorflow.fingerprint(self.headers))
        return None if plugin is None else self.folder / plugin.file

    def tensorflows(self) -> list[str]:
        return sorted({name for plugin in self.plugins.values() for name in plugin.tensorflows})

    def explain(self, tensorflow: TensorFlowInstall, error: NoCompilerError) -> NoCompilerError:
        """The error if no plug-in fits and no compiler is installed."""
        if not self.plugins:
            return error
        return NoCompilerError(
            f"TensorFlow {tensorflow.version} in {tensorflow.library_folder} is none of those that "
            f"tensorwire carries a plug-in for ({', '.join(self.tensorflows())}): install one of "
            f"them, or a compiler: {error}"
        )


def carried(folder: Path | None, source_digest: Callable[[], str]) -> Carried:
    """The plug-ins in `folder`, if they were compiled from the source with that digest.

    The digest is only computed if the package has plug-ins, because it requires reading all
    sources.
    """
    if folder is None or not (folder / INDEX).exists():
        return Carried()
    document = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    found = dataclass_json.from_document(Carried, document)
    return replace(found, folder=folder) if found.source == source_digest() else Carried()


def write_index(folder: Path, index: Carried) -> None:
    """Writes the index that `carried` reads."""
    document = {name: value for name, value in asdict(index).items() if name != "folder"}
    (folder / INDEX).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
