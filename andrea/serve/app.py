"""The addresses, and what answers them; docs/dashboard.md describes each."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import msgspec
from anyio.to_thread import current_default_thread_limiter
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from andrea.errors import AndreaError
from andrea.serve.brief import Brief
from andrea.serve.events import Watch
from andrea.serve.lines import Sample
from andrea.serve.machine import Machine
from andrea.serve.metrics import MEDIA_TYPE, metrics
from andrea.serve.overview import overview, thinned
from andrea.serve.packet import packet
from andrea.serve.page import page
from andrea.serve.runs import Runs

SLICE = 0.25  # seconds for which a history is read before what there is of it is sent
POINTS = 1000  # of each curve in /loss
MOST_STEP = 2**31 - 1
MOST_POINTS = 1_000_000
THREADS = 8  # that answer: they wait for disks and take memory
BLOCK = 10_000  # points that are made into text at a time
HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


def make_app(
    runs: Runs, machine: Machine, hosts: frozenset[str] | None = None, ending: Callable[[], bool] = lambda: False
) -> Starlette:
    """Return the application.

    Parameters
    ----------
    runs, machine
        What is shown.
    hosts
        Names under which it may be asked: a page from elsewhere whose name was made to lead here is refused. None: any.
    ending
        Says that the server is about to end.
    """
    answers = Answers(runs, machine)
    watch = Watch(runs, machine, ending)

    async def events(request: Request) -> StreamingResponse:
        return StreamingResponse(watch.events(), media_type="text/event-stream")

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        current_default_thread_limiter().total_tokens = THREADS
        task = asyncio.create_task(watch.work())
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    return Starlette(
        routes=[
            Route("/", answers.page),
            Route("/loss", answers.losses),
            Route("/loss/{model:path}", answers.loss),
            Route("/checkpoints", answers.checkpoints),
            Route("/samples/{model:path}", answers.samples),
            Route("/system", answers.system),
            Route("/metrics", answers.metrics),
            Route("/events", events),
            Route("/runs", answers.runs),
            Route("/history/{model:path}", answers.history),
            Route("/config/{model:path}", answers.config),
        ],
        middleware=[Middleware(Guard, hosts=hosts)],
        exception_handlers={AndreaError: _not_found, HTTPException: _refused},
        lifespan=lifespan,
    )


class Answers:
    """One method an address; they read files, so Starlette calls them in threads of their own."""

    def __init__(self, runs: Runs, machine: Machine) -> None:
        self._runs, self._machine = runs, machine
        self._page, self._policy = page()

    def page(self, request: Request) -> Response:
        """Answer with the dashboard."""
        headers = {"content-security-policy": self._policy}
        return Response(self._page, media_type="text/html; charset=utf-8", headers=headers)

    def losses(self, request: Request) -> Response:
        """Answer with the curves of all runs, in few points: of those that train, and of the others."""
        points = _number(request, "points", POINTS, 2, MOST_POINTS)
        briefs = self._runs.refresh()
        live = [brief for brief in briefs if brief.state == "running"]
        saved = [brief for brief in briefs if brief.state != "running"]

        def curves(group: list[Brief]) -> Iterator[bytes]:
            for number, brief in enumerate(group):
                text = _json(brief.model) + b":" + _json(overview(brief.journal, points))
                yield (b"," if number else b"") + text

        def text() -> Iterator[bytes]:
            yield b'{"live":{'
            yield from curves(live)
            yield b'},"saved":{'
            yield from curves(saved)
            yield b"}}"

        return StreamingResponse(text(), media_type="application/json")

    def loss(self, request: Request) -> Response:
        """Answer with the whole curve of a run, a part of it, or few points of it."""
        brief = self._find(request)
        first, last = _span(request)
        points = _number(request, "points", 0, 2, MOST_POINTS)
        if points and (first, last) == (0, MOST_STEP):
            return _answer({"points": overview(brief.journal, points)})
        history = self._runs.history(brief)
        with history.lock:
            history.update()
            steps, losses = history.rows["step"][:], history.rows["loss"][:]
        rows: Sequence[int] = range(bisect_left(steps, first), bisect_right(steps, last))
        if points:
            rows = thinned(rows, points)

        def text() -> Iterator[bytes]:
            yield b'{"points":['
            for start in range(0, len(rows), BLOCK):
                block = [(steps[row], losses[row]) for row in rows[start : start + BLOCK]]
                yield (b"," if start else b"") + _json(block)[1:-1]
            yield b"]}"

        return StreamingResponse(text(), media_type="application/json")

    def checkpoints(self, request: Request) -> Response:
        """Answer with the complete checkpoints of all runs."""
        return _answer({"checkpoints": [c for brief in self._runs.refresh() for c in brief.checkpoints()]})

    def samples(self, request: Request) -> Response:
        """Answer with the texts of a run, all or some."""
        brief = self._find(request)
        first, last = _span(request)
        most = _number(request, "last", 0, 1, MOST_POINTS)
        history = self._runs.history(brief)
        history.update()
        found = history.samples(first, last, most or None)

        def text() -> Iterator[bytes]:
            yield b'{"samples":['
            for number, sample in enumerate(found):
                yield (b"," if number else b"") + _json(_texts(sample))[1:-1]
            yield b"]}"

        return StreamingResponse(text(), media_type="application/json")

    def system(self, request: Request) -> Response:
        """Answer with figures of the machine."""
        return _answer(self._machine.figures())

    def metrics(self, request: Request) -> Response:
        """Answer as Prometheus asks."""
        text = metrics(self._runs.refresh(), self._machine.figures())
        return Response(text, headers={"content-type": MEDIA_TYPE})

    def runs(self, request: Request) -> Response:
        """Answer with what is known of every run at a glance."""
        return _answer({"runs": [brief.to_json() for brief in self._runs.refresh()]})

    def history(self, request: Request) -> Response:
        """Answer with the columns of a run behind those that the asker has."""
        brief = self._find(request)
        generation = _number(request, "generation", 0, 0, MOST_STEP)
        first = _number(request, "first", 0, 0, MOST_STEP)
        history = self._runs.history(brief)
        with history.lock:
            complete = history.update(SLICE)
            data = packet(history, complete, self._runs.chance(brief), brief.speeds, generation, first)
        return Response(data, media_type="application/octet-stream")

    def config(self, request: Request) -> Response:
        """Answer with the resolved configuration of a run."""
        return _answer(self._find(request).config)

    def _find(self, request: Request) -> Brief:
        return self._runs.find(request.path_params["model"])


class Guard:
    """Refuses requests under foreign names, and adds what keeps answers out of caches and foreign pages."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str] | None) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        app = self._app if self._known(scope) else _answer(_error("this name is not served", ""), 400)
        await app(scope, receive, send_guarded)

    def _known(self, scope: Scope) -> bool:
        asked = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        try:
            return self._hosts is None or urlsplit(f"//{asked}").hostname in self._hosts
        except ValueError:
            return False


def _texts(sample: Sample) -> list[dict[str, Any]]:
    """Return the texts of a sample in the shape of ``<model>.samples.json``."""
    return [{"step": sample.step, "text": text, "loss": float(sample.loss)} for text in sample.texts]


def _span(request: Request) -> tuple[int, int]:
    first = _number(request, "from", 0, 0, MOST_STEP)
    last = _number(request, "to", MOST_STEP, 0, MOST_STEP)
    if last < first:
        raise HTTPException(400, f"from {first} lies behind to {last}")
    return first, last


def _number(request: Request, name: str, default: int, least: int, most: int) -> int:
    """Return a whole number that the request gives, the default when it gives none."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(most)) and least <= int(text) <= most):
        raise HTTPException(400, f"{name} is {text[:50]!r}; it must be a whole number from {least} to {most}")
    return int(text)


_json: Callable[[Any], bytes] = msgspec.json.encode  # writes what is not finite as null


def _answer(value: Any, status: int = 200) -> Response:
    return Response(_json(value), status, media_type="application/json")


def _error(message: str, hint: str) -> dict[str, str]:
    return {"error": message, "hint": hint}


def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, AndreaError)
    return _answer(_error(error.message, error.hint), 404)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    hint = "addresses: / /loss /loss/MODEL /checkpoints /samples/MODEL /system /metrics /events /runs"
    answer = _answer(_error(error.detail, hint), error.status_code)
    answer.headers.update(error.headers or {})
    return answer
