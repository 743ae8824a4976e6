"""The plug-ins in a package: the fitting one is used, and no other one.

TensorFlow is replaced by a folder as installed by pip: headers, libraries, and the RECORD file.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tensorwire.cli.main import main
from tensorwire.errors import TensorwireError
from tensorwire.plugin import build, prebuilt
from tensorwire.plugin.tensorflow_install import (
    LIBRARIES,
    TensorFlowInstall,
    header_digests,
)

HEADERS = {"tensorflow/core/op.h": "one", "external/absl/status.h": "two", "Eigen/Core": "three"}
FLAGS = ("-D_GLIBCXX_USE_CXX11_ABI=1", "--std=c++17")


def install(site: Path, headers: Mapping[str, str], name: str = "tensorflow_cpu") -> Path:
    """Puts headers and their record into `site`; returns the record."""
    lines = [f"{name}/__init__.py,,"]
    for path, text in headers.items():
        file = site / "tensorflow/include" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        sha = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        lines.append(f"tensorflow/include/{path},sha256={sha},{len(text)}")
    record = site / f"{name}-2.99.0.dist-info/RECORD"
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text("\n".join(lines) + "\n")
    return record


@dataclass(frozen=True)
class Package:
    """A package with one plug-in, which fits `tensorflow`."""

    site: Path
    record: Path
    tensorflow: TensorFlowInstall
    source: build.PluginSource
    library: Path

    def built(self) -> Path:
        return build.ensure_built(self.tensorflow, self.source)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    site = tmp_path / "site"
    record = install(site, HEADERS)
    for name in LIBRARIES:
        (site / "tensorflow" / name).write_text("")
    tensorflow = TensorFlowInstall(
        "2.99.0", site / "tensorflow/include", site / "tensorflow", FLAGS
    )
    for name in ("plugin", "include", "prebuilt/content"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "plugin/one.cc").write_text("int one;\n")
    library = tmp_path / "prebuilt/content" / build.PLUGIN_NAME
    library.write_text("")
    source = build.PluginSource(
        tmp_path / "plugin",
        tmp_path / "include",
        tmp_path / "libtensorwire.so",
        prebuilt=tmp_path / "prebuilt",
    )
    plugin = prebuilt.Plugin(f"content/{library.name}", ["tensorflow-cpu 2.99.0"])
    prebuilt.write_index(
        tmp_path / "prebuilt",
        prebuilt.Carried(
            source=source.digest(),
            compiler="some compiler",
            headers=sorted(HEADERS),
            plugins={tensorflow.fingerprint(HEADERS): plugin},
        ),
    )
    # No compiler, for the case that no plug-in fits.
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("TENSORWIRE_CACHE", str(tmp_path / "cache"))
    return Package(site, record, tensorflow, source, library)


def test_the_fitting_one_is_taken_and_nothing_is_compiled(package: Package) -> None:
    assert package.built() == package.library


def test_the_version_does_not_matter_where_flags_and_headers_fit(package: Package) -> None:
    other = replace(package.tensorflow, version="2.98.0")
    assert build.ensure_built(other, package.source) == package.library


@pytest.mark.parametrize("changed", sorted(HEADERS))
def test_one_for_another_header_is_never_taken(package: Package, changed: str) -> None:
    install(package.site, {**HEADERS, changed: "another"})
    with pytest.raises(TensorwireError):
        package.built()


def test_one_for_a_header_that_is_missing_is_never_taken(package: Package) -> None:
    install(package.site, {name: text for name, text in HEADERS.items() if name != "Eigen/Core"})
    with pytest.raises(TensorwireError):
        package.built()


def test_one_for_other_flags_is_never_taken(package: Package) -> None:
    other = replace(package.tensorflow, compile_flags=("-D_GLIBCXX_USE_CXX11_ABI=0", FLAGS[1]))
    with pytest.raises(TensorwireError):
        build.ensure_built(other, package.source)


def test_one_from_another_source_is_never_taken(package: Package) -> None:
    (package.source.folder / "one.cc").write_text("int another;\n")
    with pytest.raises(TensorwireError, match="no C\\+\\+ compiler"):
        package.built()


def test_it_can_be_left_aside(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.PREBUILT_VARIABLE, "0")
    with pytest.raises(TensorwireError, match="no C\\+\\+ compiler"):
        package.built()


def test_without_a_compiler_it_says_what_was_found_and_what_would_fit(package: Package) -> None:
    other = replace(package.tensorflow, version="2.97.0+vendor", compile_flags=())
    with pytest.raises(TensorwireError) as caught:
        build.ensure_built(other, package.source)
    message = str(caught.value)
    assert f"TensorFlow 2.97.0+vendor in {package.tensorflow.library_folder}" in message
    assert "(tensorflow-cpu 2.99.0): install one of them, or a compiler" in message
    assert "apt-get install g++" in message
    assert "\n" not in message


def test_headers_that_an_image_leaves_out_are_in_the_record(package: Package) -> None:
    for name in HEADERS:
        (package.tensorflow.include / name).unlink()
    assert package.built() == package.library


def test_without_a_record_the_headers_are_read(package: Package) -> None:
    recorded = header_digests(package.tensorflow.include, HEADERS)
    package.record.unlink()
    assert header_digests(package.tensorflow.include, HEADERS) == recorded
    assert package.built() == package.library
    (package.tensorflow.include / "Eigen/Core").write_text("another")
    with pytest.raises(TensorwireError):
        package.built()


def test_of_two_distributions_in_one_place_the_headers_are_read(package: Package) -> None:
    install(package.site, {**HEADERS, "Eigen/Core": "another"}, name="tensorflow")
    with pytest.raises(TensorwireError):
        package.built()


def test_a_record_of_something_else_is_none(package: Package) -> None:
    other = package.site / "tensorflow_io-1.0.dist-info/RECORD"
    other.parent.mkdir()
    other.write_text("tensorflow_io/include/op.h,sha256=x,1\n")
    assert package.built() == package.library


def test_the_command_lists_what_fits(
    package: Package, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "find_tensorflow", lambda: package.tensorflow)
    monkeypatch.setattr(build, "packaged_source", lambda: package.source)

    def listed() -> str:
        with pytest.raises(SystemExit, match="0"):
            main(["build", "--list"])
        return capsys.readouterr().out

    assert "TensorFlow 2.99.0 in " in listed()
    assert "tensorflow-cpu 2.99.0   <- fits" in listed()
    assert listed().endswith("  nothing\n")

    install(package.site, {**HEADERS, "Eigen/Core": "another"})
    assert "<- fits" not in listed()
    assert listed().endswith("none fits: the first use compiles one\n")

    key = build.recipe(package.tensorflow, package.source).key
    for name in (f"{key}-gcc", "tf-2.98.0-another-gcc"):
        library = package.site.parent / "cache" / name / build.PLUGIN_NAME
        library.parent.mkdir(parents=True)
        library.touch()
    assert f"  {key}-gcc   <- fits\n  1 for another TensorFlow" in listed()
    assert "none fits" not in listed()
