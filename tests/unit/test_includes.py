"""`make lint` rejects an `#include` in native/ that violates the layers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def check(root: Path) -> tuple[int, str]:
    command = [sys.executable, ROOT / ".ci/includes", root]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return ran.returncode, ran.stdout


def write(root: Path, name: str, text: str) -> None:
    file = root / "native" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


REFUSED = [
    ("wire/src/frame.cc", '"tensorflow/core/framework/tensor.h"'),
    ("wire/src/frame.cc", "<tensorflow/c/c_api.h>"),
    ("wire/src/frame.cc", '"absl/status/status.h"'),
    ("wire/src/frame.cc", '"calls/status_of_tensorflow.h"'),
    ("wire/src/frame.cc", '"../../tensorflow/calls/status_of_tensorflow.h"'),
    ("wire/include/tensorwire/wire/engine.h", '"reactor.h"'),
    ("tensorflow/transport/rendezvous.cc", '"reactor.h"'),
    ("tensorflow/transport/rendezvous.cc", '"../../wire/src/reactor.h"'),
    ("tensorflow/transport/rendezvous.cc", '"not/there.h"'),
    ("tensorflow/rewrites/fuse_pass.cc", '"transport/rendezvous.h"'),
    ("somewhere/else.cc", "<vector>"),
]


def test_an_include_across_a_border_is_named(tmp_path: Path) -> None:
    write(tmp_path, "wire/src/reactor.h", "#include <sys/epoll.h>\n#include <vector>\n")
    write(tmp_path, "tensorflow/calls/status_of_tensorflow.h", '#include "absl/status/status.h"\n')
    write(
        tmp_path, "tensorflow/transport/rendezvous.h", '#include "calls/status_of_tensorflow.h"\n'
    )
    assert check(tmp_path) == (0, "")
    expected = []
    for name in dict(REFUSED):
        headers = [header for file, header in REFUSED if file == name]
        write(tmp_path, name, "".join(f"#  include {header}  // why\n" for header in headers))
        expected += [
            f"native/{name}:{line}: may not include {header.strip('<>' + chr(34))}"
            for line, header in enumerate(headers, 1)
        ]
    status, said = check(tmp_path)
    assert (status, sorted(said.splitlines())) == (1, sorted(expected))


def test_a_folder_without_sources_is_no_success(tmp_path: Path) -> None:
    assert check(tmp_path)[0] == 1
