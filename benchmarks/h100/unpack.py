"""Join the parts of `pack.py` into the folder of packages: `python3 unpack.py PARTS SITE`.

Needs the standard library only, because everything else is in the parts.
"""

import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path


def unpack(parts: Path, site: Path) -> None:
    """Raises ValueError if a part is missing or damaged."""
    manifest = json.loads((parts / "manifest.json").read_text(encoding="utf-8"))
    whole = io.BytesIO()
    for name, wanted in manifest["parts"].items():
        path = parts / name
        piece = path.read_bytes() if path.exists() else b""
        if hashlib.sha256(piece).hexdigest() != wanted:
            raise ValueError(f"{path} is {'damaged' if piece else 'missing'}")
        whole.write(piece)
    whole.seek(0)
    with tarfile.open(fileobj=whole, mode="r:xz") as tar:
        tar.extractall(site, filter="data")


if __name__ == "__main__":
    unpack(Path(sys.argv[1]), Path(sys.argv[2]))
