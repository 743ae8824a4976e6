"""The environment variables of users: their old names, and what wins."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tensorwire import settings
from tensorwire.errors import UsageError


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"TENSORWIRE_TENSOR_FUSE": "1"}, {"TENSORWIRE_REWRITES": "tensor_fuse"}),
        (
            {
                "TENSORWIRE_EXACT_REWRITES": "true",
                "TENSORWIRE_BUNDLES": "0",
                "TENSORWIRE_WIRE_DTYPE": "bfloat16",
                "TENSORWIRE_WIRE_DTYPE_EXCLUDE": "dense/*,bias",
            },
            {"TENSORWIRE_REWRITES": "exact,bfloat16,float32=dense/*,float32=bias"},
        ),
        ({"TENSORWIRE_METRICS_PORT": "0"}, {"TENSORWIRE_METRICS": "127.0.0.1:0"}),
        (
            {"TENSORWIRE_METRICS_PORT": "9100", "TENSORWIRE_METRICS_HOST": "::"},
            {"TENSORWIRE_METRICS": "[::]:9100"},
        ),
        (
            {"TENSORWIRE_METRICS_PORT": "9100", "TENSORWIRE_METRICS_SOCKET": "/run/x"},
            {"TENSORWIRE_METRICS": "unix:/run/x"},
        ),
        (
            {"TENSORWIRE_UNIQUE_PULL": "1", "TENSORWIRE_REWRITES": "summed_push"},
            {"TENSORWIRE_REWRITES": "summed_push"},
        ),
        ({"TENSORWIRE_SUMMED_PUSH": "0"}, {}),
    ],
)
def test_an_old_name_gives_the_present_setting_unless_that_is_set(
    old: dict[str, str], new: dict[str, str]
) -> None:
    environment = {"HOME": "/", **old}
    said = settings.replace_old_names(environment)
    assert environment == {"HOME": "/", **new}
    assert "\n" not in said
    assert [name for name in old if name not in new and name not in said] == []
    assert settings.replace_old_names(environment) == ""


def test_a_token_and_a_folder_of_old_names_are_still_read() -> None:
    environment = {"TENSORWIRE_TOKEN": "x" * 40, "TENSORWIRE_RUNTIME": "/run/x"}
    assert settings.replace_old_names(environment) == (
        "old names of settings, for this version only: TENSORWIRE_TOKEN, TENSORWIRE_RUNTIME; "
        "set TENSORWIRE_TOKEN_FILE=FILE XDG_RUNTIME_DIR=FOLDER instead"
    )
    assert len(environment) == 2


def test_a_command_says_once_that_a_name_is_old(tensorwire: Any) -> None:
    done = tensorwire("nic", "--count", "1", env={**os.environ, "TENSORWIRE_TENSOR_FUSE": "1"})
    assert done.returncode == 0
    assert done.stderr == (
        "tensorwire: old names of settings, for this version only: TENSORWIRE_TENSOR_FUSE; "
        "set TENSORWIRE_REWRITES=tensor_fuse instead\n"
    )


@pytest.mark.parametrize(
    ("text", "is_on"),
    [("1", True), ("True", True), ("0", False), ("false", False), ("", True), (None, True)],
)
def test_all_booleans_are_written_alike(
    monkeypatch: pytest.MonkeyPatch, text: str | None, is_on: bool
) -> None:
    monkeypatch.delenv("TENSORWIRE_PREBUILT", raising=False)
    if text is not None:
        monkeypatch.setenv("TENSORWIRE_PREBUILT", text)
    assert settings.is_on("TENSORWIRE_PREBUILT", default=True) == is_on
    monkeypatch.setenv("TENSORWIRE_PREBUILT", "no")
    with pytest.raises(UsageError, match="TENSORWIRE_PREBUILT=no: expected 1 or 0"):
        settings.is_on("TENSORWIRE_PREBUILT")
