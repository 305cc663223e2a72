"""Unpacks the archives of benchmarks/pack.py on another machine; needs only Python.

    python unpack.py /tmp/stretch && . /tmp/stretch/env.sh

It may be called for each part that arrives; it lists missing parts, and then exits with code 1.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tarfile
from pathlib import Path


def main(target: Path) -> int:
    """Keep the parts that are here; unpack every archive that is whole."""
    source, kept, site = Path(__file__).parent, target / "parts", target / "site"
    kept.mkdir(parents=True, exist_ok=True)
    missing = []
    for name, digests in json.loads((source / "parts.json").read_text()).items():
        parts = [kept / f"{name}.{i}" for i in range(len(digests))]
        for part in parts:
            if (source / part.name).exists():
                shutil.copy(source / part.name, part)
        absent = [p.name for p, d in zip(parts, digests, strict=True) if not _is_whole(p, d)]
        missing += absent
        if not absent:
            _extract(parts, site)
    path = f'export PYTHONPATH="{site.resolve()}${{PYTHONPATH:+:$PYTHONPATH}}"'
    (target / "env.sh").write_text(path + "\n")
    if missing:
        print(f"missing or damaged: {', '.join(missing)}; bring them and call this again")
    return 1 if missing else 0


def _is_whole(part: Path, digest: str) -> bool:
    return part.exists() and hashlib.sha256(part.read_bytes()).hexdigest() == digest


def _extract(parts: list[Path], site: Path) -> None:
    whole = parts[0].with_suffix(".whole")
    whole.write_bytes(b"".join(part.read_bytes() for part in parts))
    with tarfile.open(whole) as tar:
        tar.extractall(site, filter="data")
    whole.unlink()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"expected one folder, got {sys.argv[1:]}; call: python unpack.py FOLDER")
    sys.exit(main(Path(sys.argv[1])))
