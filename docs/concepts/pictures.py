"""Draws the pictures of this folder: `python docs/concepts/pictures.py`.

Each picture has its own background, with colours for light and dark mode, so it is readable on any
page. A test compares the files with the output of this script.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent
STYLE = (
    "text{font:14px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}"
    "text{fill:#1f2933}"
    ".card{fill:#f6f8fa}.box{fill:#fff;stroke:#8a94a0}.ours{fill:#dbe9ff;stroke:#3b6fd0}"
    ".data{fill:#d5f0e2;stroke:#1f8a5c}.hot{fill:#ffdcd2;stroke:#c2492b}"
    ".line{fill:none;stroke:#56616d;stroke-width:1.5}.dashed{stroke-dasharray:5 4}"
    ".small{font-size:12px}.strong{font-weight:600}.tip{fill:#56616d}"
    "@media(prefers-color-scheme:dark){text{fill:#e6eaef}.card{fill:#1b2026}"
    ".box{fill:#262d36;stroke:#768390}.ours{fill:#1d3557;stroke:#6a9cf0}"
    ".data{fill:#173f2d;stroke:#4fbf8b}.hot{fill:#56261a;stroke:#ef8062}"
    ".line{stroke:#a3adb8}.tip{fill:#a3adb8}}"
)


class Picture:
    """An SVG picture: boxes, arrows and texts at positions in pixels."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        self._title = title
        self._parts = [f'<rect class="card" width="{width}" height="{height}" rx="10"/>']

    def box(self, x: int, y: int, width: int, height: int, *lines: str, kind: str = "box") -> None:
        """A box with centred lines of text."""
        self._parts.append(
            f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>'
        )
        first = y + height / 2 + 5 - 9 * (len(lines) - 1)
        for number, line in enumerate(lines):
            style = "" if number == 0 else "small"
            self.text(x + width / 2, first + 18 * number, line, style, "middle")

    def text(self, x: float, y: float, words: str, style: str = "", anchor: str = "start") -> None:
        """A text that begins, ends or is centred at x, depending on `anchor`."""
        place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}"'
        self._parts.append(f'<text class="{style}" {place}>{escape(words)}</text>')

    def arrow(self, *points: tuple[int, int], words: str = "", dashed: bool = False) -> None:
        """A line through the points with a tip at its end, and `words` above its middle."""
        path = "M" + " L".join(f"{x} {y}" for x, y in points)
        style = "line dashed" if dashed else "line"
        self._parts.append(f'<path class="{style}" d="{path}" marker-end="url(#tip)"/>')
        if words:
            (x1, y1), (x2, y2) = points[0], points[-1]
            self.text((x1 + x2) / 2, (y1 + y2) / 2 - 7, words, "small", "middle")

    def line(self, *points: tuple[int, int], dashed: bool = False) -> None:
        """A line without a tip."""
        path = "M" + " L".join(f"{x} {y}" for x, y in points)
        self._parts.append(f'<path class="{"line dashed" if dashed else "line"}" d="{path}"/>')

    def svg(self) -> str:
        """The content of the SVG file."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {self._size} role="img">\n'
            f"<title>{escape(self._title)}</title>\n<style>{STYLE}</style>\n"
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
            'markerHeight="8" orient="auto"><path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>\n'
            + "\n".join(self._parts).replace(' class=""', "")
            + "\n</svg>\n"
        )


def tensor() -> Picture:
    """The path of a tensor from _Send to _Recv."""
    p = Picture(760, 330, "A tensor's way from a worker's memory to a ps's memory, without a copy")
    for x, name in ((20, "worker process"), (420, "ps process")):
        p.text(x + 160, 34, name, "strong", "middle")
    p.box(20, 50, 320, 44, "_Send", "TensorFlow's executor")
    p.box(20, 124, 320, 44, "plug-in: is there a standing order?", kind="ours")
    p.box(20, 198, 320, 44, "outbox", "all queued frames in one sendmsg", kind="ours")
    p.box(20, 272, 320, 44, "the tensor's memory", "the frame refers to it", kind="data")
    p.box(420, 50, 320, 44, "_Recv", "TensorFlow's executor")
    p.box(420, 124, 320, 44, "plug-in: allocates the tensor", kind="ours")
    p.box(420, 198, 320, 44, "frame reader", "checks all lengths", kind="ours")
    p.box(420, 272, 320, 44, "the new tensor's memory", "readv writes into it", kind="data")
    for y in (94, 168):
        p.arrow((180, y), (180, y + 28))
    p.arrow((340, 220), (418, 220), words="metadata")
    p.arrow((340, 294), (418, 294), words="payload")
    for y in (196, 122):
        p.arrow((580, y), (580, y - 26))
    return p


def pushes() -> Picture:
    """Three steps of one tensor."""
    p = Picture(760, 250, "A tensor is requested in one step and pushed in all later ones")
    p.text(150, 34, "consumer", "strong", "middle")
    p.text(640, 34, "producer", "strong", "middle")
    p.line((150, 46), (150, 232))
    p.line((640, 46), (640, 232))
    for y, name in ((66, "step 1"), (152, "step 2"), (204, "and on")):
        p.text(20, y + 8, name, "strong")
    p.arrow((152, 66), (638, 76), words="request with a standing order")
    p.arrow((638, 106), (152, 116), words="tensor; the order is accepted")
    p.arrow((638, 158), (152, 168), words="tensor, as soon as it is made (push)")
    p.arrow((638, 208), (152, 218), words="push")
    return p


def loan() -> Picture:
    """A payload that the peer reads from shared memory."""
    p = Picture(760, 290, "A large tensor between tasks of one host: lent, copied once, returned")
    p.text(160, 34, "ps process (owner)", "strong", "middle")
    p.text(600, 34, "worker process (reader)", "strong", "middle")
    p.box(20, 50, 280, 60, "memory file", "tensors of 256 KiB and more", kind="data")
    p.box(460, 50, 280, 60, "the same file, read-only", "mapped once, in the greeting", kind="data")
    p.arrow((300, 80), (458, 80), words="Unix socket: descriptor", dashed=True)
    p.box(20, 160, 280, 104, "plug-in", "keeps the tensor until it", "is returned", kind="ours")
    p.box(460, 190, 280, 74, "the consumer's tensor", "one memcpy, several threads", kind="box")
    p.arrow((600, 110), (600, 188), words="")
    p.text(612, 154, "copy", "small")
    p.arrow((300, 206), (458, 206), words="1. lent: place in the file")
    p.arrow((458, 248), (302, 248), words="2. returned")
    return p


def rewrites() -> Picture:
    """The messages of a step before and after rewrites."""
    p = Picture(760, 400, "A step's crossings before and after exact rewrites and fusion")

    def half(y: int, title: str, cross: Sequence[tuple[str, str]], worker: str, ps: str) -> None:
        p.text(20, y, title, "strong")
        p.box(20, y + 14, 180, 140, "worker", worker)
        p.box(560, y + 14, 180, 140, "ps", ps)
        for number, (words, way) in enumerate(cross):
            at = y + 44 + number * (100 // max(1, len(cross) - 1))
            ends = ((202, at), (558, at)) if way == ">" else ((558, at), (202, at))
            p.arrow(*ends, words=words)

    half(
        34,
        "as TensorFlow does it: a message for each tensor",
        [
            ("table 1: 256 ids, 40 of them different", ">"),
            ("table 1: 256 rows", "<"),
            ("table 1: 256 gradients; likewise tables 2, 3, …", ">"),
        ],
        "looks up, trains",
        "sums, updates",
    )
    half(
        226,
        "exact rewrites: unique pull, summed push, bundles, tensor fusion",
        [
            ("all tables: 40 different ids each, one message", ">"),
            ("all tables: 40 rows each, one message", "<"),
            ("all tables: 40 summed gradients each, one message", ">"),
        ],
        "expands, trains, sums",
        "one operation, all tables",
    )
    return p


def placement() -> Picture:
    """Round robin and balanced."""
    p = Picture(760, 300, "Round robin fills one ps with the embedding; balanced splits it")

    def ps(x: int, name: str, parts: Sequence[tuple[str, int, str]]) -> None:
        y = 250
        for words, height, kind in parts:
            y -= height
            p.box(x, y, 100, height - 2, *([words] if height > 18 else []), kind=kind)
        p.line((x - 4, 250), (x + 104, 250))
        p.text(x + 50, 272, name, "", "middle")

    p.text(180, 34, "round_robin", "strong", "middle")
    p.text(580, 34, "balanced", "strong", "middle")
    ps(20, "ps:0", [("embedding", 184, "hot")])
    ps(130, "ps:1", [("hidden", 24, "box")])
    ps(240, "ps:2", [("output", 20, "box")])
    ps(420, "ps:0", [("rows 0 … a", 74, "data")])
    ps(530, "ps:1", [("rows a … b", 62, "data"), ("", 12, "box")])
    ps(640, "ps:2", [("rows b … end", 62, "data"), ("", 12, "box")])
    return p


def planner() -> Picture:
    """The phases of a worker's step and the resources that they use."""
    p = Picture(760, 300, "The phases of a worker's step in the planner, and what each one uses")
    phases = ("input", "start", "pull", "compute", "push")
    for number, name in enumerate(phases):
        x = 20 + 146 * number
        p.box(x, 50, 120, 40, name, kind="ours")
        if number:
            p.arrow((x - 26, 70), (x - 2, 70))
    p.text(20, 34, "a worker's step: one phase after the other", "strong")
    uses = (
        ("read-ahead", "queue of two", 20),
        ("the worker's", "cores", 166),
        ("", "", 312),
        ("the worker's", "cores", 458),
        ("", "", 604),
    )
    for first, second, x in uses:
        if first:
            p.arrow((x + 60, 92), (x + 60, 132))
            p.box(x, 134, 120, 48, first, second)
    for x in (312, 604):
        p.arrow((x + 60, 92), (x + 60, 132))
        p.box(x, 134, 132, 124, "each ps at once:", "cores, CPU limit,", "threads, both ends'",
              "links", kind="data")  # fmt: skip
    p.text(20, 240, "Parts that use one resource", "small")
    p.text(20, 258, "at a time share it fairly.", "small")
    return p


PICTURES: dict[str, Callable[[], Picture]] = {
    "tensor": tensor,
    "pushes": pushes,
    "shared-memory": loan,
    "rewrites": rewrites,
    "placement": placement,
    "planner": planner,
}


def files() -> dict[Path, str]:
    """The content of each picture's file."""
    return {FOLDER / f"{name}.svg": draw().svg() for name, draw in PICTURES.items()}


if __name__ == "__main__":
    for path, svg in files().items():
        path.write_text(svg)
