"""What fuzzing of the plug-in's decoding found, replayed (`make fuzz` looks for more)."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugin_unit import FUZZ, build_unit, check

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.newest,
    pytest.mark.timeout(600, method="thread", func_only=True),
]

REPLAY = FUZZ.parents[2] / "wire/fuzz/replay_main.cc"


def test_what_was_found_by_fuzzing_does_no_harm(tmp_path: Path) -> None:
    program = tmp_path / "plugin_fuzz"
    build_unit(program, None, [FUZZ, REPLAY], flags=("-O0",))
    for target in ("tensor", "fused", "requests"):
        corpus = FUZZ.parent / "corpus"
        check(program, str(corpus / target), str(corpus / f"{target}.learned"), FUZZ_TARGET=target)
