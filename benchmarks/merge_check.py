"""Merges what the parts of gpu_check.sh left into one JSON, and prints the table that stands last.

merge_check.py FOLDER [PART EXIT_CODE SECONDS COMMIT]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree


def details(folder: Path, part: str) -> object:
    """Return what a part has to say beside its exit code."""
    if (report := folder / f"{part}.json").is_file():
        return json.loads(report.read_text())
    if part == "tests" and (reports := sorted(folder.glob("tests*.xml"))):
        suites = [suite for report in reports for suite in ElementTree.parse(report).getroot().iter("testsuite")]
        return {
            key: sum(int(suite.get(key, 0)) for suite in suites) for key in ("tests", "failures", "errors", "skipped")
        }
    log = folder / f"{part}.log"
    return log.read_text().splitlines()[-20:] if log.is_file() else None


def claims(value: object) -> dict[str, bool]:
    """Return every claim that a part's details hold, at any depth, and whether it is true."""
    if not isinstance(value, dict):
        return {}
    found: dict[str, bool] = {}
    for key, inner in value.items():
        found |= inner if key == "claims" else {f"{key}: {claim}": true for claim, true in claims(inner).items()}
    return found


def main() -> None:
    """Add one part, or print all."""
    folder = Path(sys.argv[1])
    merged = folder / "gpu_check.json"
    document = json.loads(merged.read_text()) if merged.is_file() else {}
    if len(sys.argv) > 2:
        part, code, seconds, commit = sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
        document[part] = {"commit": commit, "exit": code, "seconds": seconds, "details": details(folder, part)}
        merged.write_text(json.dumps(document, indent=1) + "\n")
        return
    print("part      result     seconds  commit")
    for part, found in document.items():
        verdict = {0: "passed", 124: "too long"}.get(found["exit"], f"failed {found['exit']}")
        print(f"{part:9s} {verdict:10s} {found['seconds']:7d}  {found['commit'][:12]}")
    for part, found in document.items():
        for claim, true in claims(found["details"]).items():
            print(f"{part:9s} {'true' if true else 'FALSE':10s} {claim}")


if __name__ == "__main__":
    main()
