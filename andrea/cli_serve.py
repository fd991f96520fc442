"""``andrea serve``: runs in a browser."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from andrea.errors import AndreaError

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def serve(
    path: Annotated[
        Path | None, typer.Argument(metavar="[RUN|FOLDER]", help="a run, or a folder of runs; runs/ when left out")
    ] = None,
    host: Annotated[str, typer.Option(help="address to listen at; others than this machine's own let others in")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="port; 0 takes a free one")] = 8088,
    gpu: Annotated[int, typer.Option(min=0, help="GPU whose figures are shown, as nvidia-smi counts")] = 0,
) -> None:
    """Show runs in a browser while they train, and after: curves, sources, samples, machine. Nothing is written."""
    from andrea.extras import import_extra

    for module in ("starlette", "uvicorn", "msgspec", "psutil"):
        import_extra(module, "serve", "andrea serve answers over HTTP")
    import uvicorn

    from andrea.serve.app import make_app
    from andrea.serve.machine import Machine
    from andrea.serve.runs import Runs

    folder = _folder(path)
    with _listen(host, port) as place:
        hosts = frozenset(LOOPBACK) if host in LOOPBACK else None
        app = make_app(Runs(folder), Machine(gpu), hosts, lambda: server.should_exit)
        server = uvicorn.Server(
            uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, ws="none", lifespan="on")
        )
        shown = f"[{host}]" if ":" in host else host
        print(f"{folder}: http://{shown}:{place.getsockname()[1]}/  (Ctrl-C ends it)", file=sys.stderr, flush=True)
        if host not in LOOPBACK:
            print("whoever reaches this machine can read these runs", file=sys.stderr, flush=True)
        server.run(sockets=[place])


def _folder(path: Path | None) -> Path:
    folder = path or Path("runs")
    if not folder.is_dir():
        raise AndreaError(
            f"{folder} is a file" if folder.exists() else f"there is no {folder}",
            "andrea run begins a run in runs/; name a run's folder, or one that runs are in",
        )
    return folder


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that is bound, so that a port in use is said at once and in our words."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        raise AndreaError(
            f"cannot listen at {host}, port {port}: {getattr(error, 'strerror', None) or error}",
            "another server may be there: name another port, as --port 8089, or --port 0 for a free one",
        ) from None
