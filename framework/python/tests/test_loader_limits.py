"""The limits of the loader: a file past one is refused with a text that names the limit and the remedy."""

from __future__ import annotations

import os
import re
import struct
import zlib
from pathlib import Path

from PIL import Image

import tensorpost as tp

SOURCES = Path(__file__).parents[1] / "src" / "loader"


def chunk(kind: bytes, data: bytes) -> bytes:
    """Returns a chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def test_each_limit_names_itself_and_the_remedy(tmp_path: Path) -> None:
    """A new constant of `limits.rs` needs a row: a file past the limit, or the reason why there is none."""
    wide, large, long = (tmp_path / name for name in ("wide.jpg", "large.png", "long.png"))
    Image.new("L", ((1 << 15) + 1, 8)).save(wide)
    head = struct.pack(">IIBBBBB", 1 << 14, 1 << 14, 8, 0, 0, 0, 0)
    large.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b""))
    long.touch()
    os.truncate(long, (1 << 30) + 1)
    rows: dict[str, Path | str] = {
        "MAX_SIDE": wide,
        "MAX_PIXELS": large,
        "MAX_FILE": long,
        "TASKS_EACH": "further tasks wait",
        "MAX_TASK": "further samples are another task",
        "MAX_DEATHS": "the test of a file that kills its workers reads it",
        "RESTARTS": "17 ends of a worker take longer than a test may, so only the source is looked at",
        "BACKOFF": "a worker that has ended waits",
    }
    assert "at most {RESTARTS} times in a minute; the log says" in (SOURCES / "feed.rs").read_text()
    limits = dict(re.findall(r"^pub\(super\) const (\w+): [^=]+ = ([^;]+);", (SOURCES / "limits.rs").read_text(), re.MULTILINE))
    assert limits.keys() == rows.keys()
    files = {name: path for name, path in rows.items() if isinstance(path, Path)}
    with tp.Loader(list(files.values()), [tp.Resize(8, 8)], batch=4, workers=1, to="numpy", on_error="skip") as loader:
        assert list(loader) == []
    for name, path in files.items():
        why = loader.broken[str(path)]
        assert str(eval(limits[name])) in why and "make it smaller" in why, (name, why)
