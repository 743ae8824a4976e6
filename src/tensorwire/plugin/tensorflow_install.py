"""The installed TensorFlow."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import re
import sys
import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tensorwire.errors import TensorwireError
from tensorwire.plugin.cache import digest

OLDEST = (2, 15)
NEWEST_TESTED = (2, 21)

# In this order: TensorFlow 2.15 defines ServerFactory::Register in both libraries, and its server
# looks in the framework's registry.
LIBRARIES = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")


@dataclass(frozen=True)
class TensorFlowInstall:
    """An installed TensorFlow. ``compile_flags`` are TensorFlow's own, without include paths."""

    version: str
    include: Path
    library_folder: Path
    compile_flags: tuple[str, ...]

    @property
    def identity(self) -> str:
        """Distinguishes builds with the same version number, such as a vendor's and PyPI's."""
        sizes = ((self.library_folder / name).stat().st_size for name in LIBRARIES)
        return f"{self.version}/" + "/".join(map(str, sizes))

    def fingerprint(self, headers: Iterable[str]) -> str:
        """Digest of the compile flags and of those `headers` that this TensorFlow has.

        A library that was compiled with the same flags and the same headers fits.
        """
        wanted = sorted(headers)
        found = header_digests(self.include, wanted)
        parts = [part for name in wanted for part in (name, found.get(name, ""))]
        return digest(*self.compile_flags, *parts)


def header_digests(include: Path, headers: Iterable[str]) -> dict[str, str]:
    """SHA-256 of each header that exists, by its path below `include`.

    They are taken from pip's record of installed files, which is faster than reading the headers.
    The headers are read if there is no record (conda, Debian), or two, of which one is outdated.
    """
    prefix = f"{include.parent.name}/{include.name}/"  # of all header names in a record
    files = sorted(include.parent.parent.glob("*.dist-info/RECORD"))
    records = [text for file in files if f"\n{prefix}".encode() in (text := file.read_bytes())]
    if len(records) == 1:
        # "tensorflow/include/Eigen/Core,sha256=47DEQp…,1234"; no header's name has a comma.
        lines = records[0].decode().splitlines()
        digests = dict(line.partition(",sha256=")[::2] for line in lines)
        known = {name: digests[prefix + name] for name in headers if prefix + name in digests}
        return {name: digest.partition(",")[0] for name, digest in known.items()}
    found = {}
    for name in headers:
        with suppress(FileNotFoundError):
            sha256 = hashlib.sha256((include / name).read_bytes()).digest()
            # In the format of records: URL-safe base64 without padding.
            found[name] = base64.urlsafe_b64encode(sha256).rstrip(b"=").decode()
    return found


def not_installed() -> TensorwireError:
    """The error for a missing TensorFlow."""
    return TensorwireError(
        f"TensorFlow is not installed for {sys.executable}: pip install tensorflow"
    )


def check_installed() -> None:
    """Raises TensorwireError if TensorFlow is missing. Does not import it, because that is slow."""
    if importlib.util.find_spec("tensorflow") is None:
        raise not_installed()


def find_tensorflow() -> TensorFlowInstall:
    """Imports TensorFlow and reads its version, paths and compile flags.

    Raises TensorwireError if it is missing, or if the plug-in cannot be built for it.
    """
    try:
        import tensorflow as tf
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        raise not_installed() from None
    check_version(tf.__version__)
    install = TensorFlowInstall(
        version=tf.__version__,
        include=Path(tf.sysconfig.get_include()),
        library_folder=Path(tf.sysconfig.get_lib()),
        compile_flags=tuple(
            flag for flag in tf.sysconfig.get_compile_flags() if not flag.startswith("-I")
        ),
    )
    for needed in (*(install.library_folder / name for name in LIBRARIES), install.include):
        if not needed.exists():
            raise TensorwireError(
                f"this TensorFlow {install.version} has no {needed}, which the plug-in needs; "
                "the wheels tensorflow and tensorflow-cpu from PyPI have it"
            )
    return install


def check_version(version: str) -> None:
    """Raises TensorwireError for a TensorFlow that is too old; warns for one that is untested."""
    found = re.match(r"(\d+)\.(\d+)", version)
    number = (int(found[1]), int(found[2])) if found else (0, 0)
    if number < OLDEST:
        raise TensorwireError(
            f"TensorFlow {version} is too old for grpc++, which needs {_text(OLDEST)} or newer: "
            f"pip install 'tensorflow>={_text(OLDEST)}'"
        )
    if number > NEWEST_TESTED:
        warnings.warn(
            f"TensorFlow {version} is newer than {_text(NEWEST_TESTED)}, the newest that this "
            "version of tensorwire was tested with; trying it",
            stacklevel=2,
        )


def _text(number: tuple[int, int]) -> str:
    return ".".join(map(str, number))


TESTED = f"{_text(OLDEST)} to {_text(NEWEST_TESTED)}"
