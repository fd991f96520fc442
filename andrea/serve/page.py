"""The dashboard as one document: styles and scripts stand in it, so nothing is fetched but the runs' own figures."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

FOLDER = Path(__file__).parent / "dashboard"
STYLES = ("style.css",)
SCRIPTS = ("uplot/uPlot.iife.min.js", "history.js", "series.js", "chart.js", "panels.js", "main.js")


def page() -> tuple[bytes, str]:
    """Return the document, and the policy by which a browser runs the scripts that stand in it and no others."""
    text = (FOLDER / "index.html").read_text(encoding="utf-8")
    hashes: dict[str, list[str]] = {"style": [], "script": []}
    for tag, names in (("style", STYLES), ("script", SCRIPTS)):
        parts = [(FOLDER / name).read_text(encoding="utf-8") for name in names]
        hashes[tag] = [f"'sha256-{_digest(part)}'" for part in parts]
        text = text.replace(f"<!-- {tag}s -->", "\n".join(f"<{tag}>{part}</{tag}>" for part in parts), 1)
    policy = (
        "default-src 'none'; connect-src 'self'; img-src data:; "
        f"style-src {' '.join(hashes['style'])}; script-src {' '.join(hashes['script'])}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text.encode(), policy


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
