"""``andrea sample`` and ``andrea chat``: text from a trained model, as it comes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from andrea.cli_answers import print_json
from andrea.cli_options import (
    AsJson,
    CheckpointName,
    DeviceName,
    DrawSeed,
    Penalty,
    RunFolder,
    Speed,
    Stops,
    Temperature,
    TopK,
    TopP,
    text_option,
)
from andrea.errors import AndreaError

if TYPE_CHECKING:
    from andrea.chat import Chat
    from andrea.engine import GenerateOptions
    from andrea.interrupts import Interrupts
    from andrea.trained import Model
    from andrea.writing import Written

RULE = "\n" + "-" * 40


def sample(
    folder: RunFolder = None,
    prompt: Annotated[list[str] | None, text_option("--prompt", help="beginning of a text; repeatable")] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="file of prompts, one a line; .jsonl: JSON texts, or objects with a prompt")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="texts for each prompt")] = 1,
    tokens: Annotated[int, typer.Option(min=1, help="tokens to add")] = 200,
    temperature: Temperature = 1.0,
    top_k: TopK = 0,
    top_p: TopP = 0.95,
    repetition_penalty: Penalty = 1.0,
    seed: DrawSeed = 0,
    stop: Stops = None,
    checkpoint: CheckpointName = None,
    device: DeviceName = "auto",
    speed: Speed = False,
    json_: AsJson = False,
) -> None:
    """Write text with a trained model."""
    from andrea.engine import GenerateOptions
    from andrea.engine.sampling import check_options
    from andrea.interrupts import Interrupts, exit_code
    from andrea.progress import print_line
    from andrea.trained import open_model
    from andrea.writing import check_stops

    beginnings = [*(prompt or []), *(read_prompts(prompts) if prompts else [])] or [""]
    beginnings = [text for text in beginnings for _ in range(count)]
    options = GenerateOptions(tokens, temperature, top_k, top_p, repetition_penalty, seed)
    check_options(options)
    check_stops(stop or ())
    model = open_model(folder, checkpoint, device, print_line, rows=len(beginnings))
    with Interrupts() as interrupts:
        stopwatch = Stopwatch()
        texts = []
        for number, one in enumerate(_written(model, beginnings, options, stop or [], interrupts, stopwatch, json_)):
            texts.append(one)
            if len(beginnings) > 1 and not json_:
                print((f"{RULE}\n" if number else "") + harmless(one.prompt + one.text))
    if json_:
        print_json({"step": model.step, "seed": seed, "samples": [_json(one) for one in texts]})
    if speed:
        print_line(stopwatch.report(sum(one.tokens for one in texts)))
    if interrupts.stopped_by:
        raise typer.Exit(exit_code(interrupts.stopped_by))


def _written(
    model: Model,
    prompts: list[str],
    options: GenerateOptions,
    stops: list[str],
    interrupts: Interrupts,
    stopwatch: Stopwatch,
    quiet: bool,
) -> Iterator[Written]:
    """Yield the texts in their order, as many at once as the engine computes; a single one is printed as it comes."""
    import attrs

    from andrea.progress import Preparing

    options = attrs.evolve(options, stop=(model.tokenizer.bos,))
    if len(prompts) == 1:
        if not quiet:
            _print_now(prompts[0])

        def show(row: int, new: str) -> None:
            stopwatch.text_came()
            if not quiet:
                _print_now(new)

        yield from model.write(prompts, options, stops, show, interrupts.stop_asked)
        if not quiet:
            print()
        return
    rows = model.engine.config.batch_size
    with Preparing() as progress:
        for first in range(0, len(prompts), rows):
            if len(prompts) > rows:
                progress("writing", first, len(prompts))
            part, numbered = prompts[first : first + rows], attrs.evolve(options, first=first)
            texts = model.write(part, numbered, stops, lambda row, new: stopwatch.text_came(), interrupts.stop_asked)
            if interrupts.stop_asked():
                return  # what is half written is not shown as a sample
            yield from texts


class Stopwatch:
    """How long text takes, from when it is asked for."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._first = 0.0

    def text_came(self) -> None:
        """Remember when the first text came."""
        self._first = self._first or time.perf_counter() - self._started

    def report(self, tokens: int) -> str:
        """Return a line to print."""
        seconds = time.perf_counter() - self._started
        pace = f"{tokens} tokens in {seconds:.3f} s, {tokens / seconds:,.0f} tokens/s"
        return f"{pace}; first text after {self._first:.3f} s"


def read_prompts(path: Path) -> list[str]:
    """Return the prompts of a file: its lines that are not empty, or the texts of its JSON lines; ``-`` is the input.

    Raises
    ------
    AndreaError
        When the file cannot be read, or a line of it is no prompt.
    """
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise AndreaError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise AndreaError(
            f"cannot read {path}: {error.strerror}", "--prompts takes a file, or - for the input"
        ) from None
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise AndreaError(f"{path} has no prompts", "write one a line, or JSON lines into a .jsonl file")
    if path.suffix == ".jsonl":
        return [_json_prompt(path, number, line) for number, line in lines]
    return [line.removesuffix("\r") for _, line in lines]


def _json_prompt(path: Path, number: int, line: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise AndreaError(f"{path}, line {number} is not JSON", 'for instance {"prompt": "Once upon a time"}') from None
    found = value.get("prompt") if isinstance(value, dict) else value
    if not isinstance(found, str):
        raise AndreaError(
            f"{path}, line {number} has no prompt: {line.strip()[:60]}",
            'give a JSON text, or an object with one: {"prompt": "Once upon a time"}',
        )
    if any("\ud800" <= c <= "\udfff" for c in found):
        raise AndreaError(f"{path}, line {number} is not text: it has half a pair of surrogates", "write it in UTF-8")
    return found


def _json(one: Written) -> dict[str, Any]:
    return {"prompt": _text(one.prompt), "text": one.text, "tokens": one.tokens, "ended": one.ended}


def _print_now(text: str) -> None:
    print(harmless(text), end="", flush=True)


def _text(text: str) -> str:
    """Return a text that can be printed: bytes of a command line that are not UTF-8 are replaced."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def harmless(text: str) -> str:
    """Return a text with control characters escaped where a terminal would obey them."""
    text = _text(text)
    if not sys.stdout.isatty():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


# -- conversation ------------------------------------------------------------------------------------------------------


COMMANDS = {
    "/again": "another reply to the same",
    "/new": "forget the conversation",
    "/help": "these commands",
    "/quit": "end; so does the end of the input",
}


def chat(
    folder: RunFolder = None,
    opening: Annotated[str, text_option("--opening", help="text before the first turn")] = "",
    tokens: Annotated[int, typer.Option(min=1, help="tokens of a reply at most")] = 256,
    temperature: Temperature = 0.8,
    top_k: TopK = 0,
    top_p: TopP = 0.95,
    repetition_penalty: Penalty = 1.0,
    seed: DrawSeed = 0,
    stop: Stops = None,
    checkpoint: CheckpointName = None,
    device: DeviceName = "auto",
    speed: Speed = False,
    json_: AsJson = False,
) -> None:
    """Talk with a trained model: `> ` is you, `< ` the model. Ctrl-C ends a reply, Ctrl-D the conversation."""
    from andrea.chat import Chat
    from andrea.engine import GenerateOptions
    from andrea.engine.sampling import check_options
    from andrea.interrupts import exit_code
    from andrea.progress import print_line
    from andrea.trained import open_model
    from andrea.writing import check_stops

    options = GenerateOptions(tokens, temperature, top_k, top_p, repetition_penalty, seed)
    check_options(options)
    check_stops(stop or ())
    talk = Chat(open_model(folder, checkpoint, device, print_line, rows=1), options, stop or (), opening)
    turns: list[dict[str, Any]] = []
    ended_by = ""
    for line in _lines(json_):
        if line.startswith("/") and not _obey(talk, line):
            continue
        reply, ended_by = _reply(talk, line, json_, speed)
        turns.append(_json(reply))
        if ended_by == "SIGTERM" or (ended_by and not sys.stdin.isatty()):
            break
        ended_by = ""
    if json_:
        print_json({"step": talk.model.step, "seed": seed, "turns": turns})
    if ended_by:
        raise typer.Exit(exit_code(ended_by))


def _lines(quiet: bool) -> Iterator[str]:
    """Yield what a person types, or the lines of a file that stands in for one, up to the end or ``/quit``."""
    for line in _typed(quiet) if sys.stdin.isatty() else _read():
        if line.strip() == "/quit":
            return
        if line.strip():
            yield line.rstrip()


def _typed(quiet: bool) -> Iterator[str]:
    from andrea.progress import print_line

    with suppress(ImportError):
        import readline  # noqa: F401  a line can be edited, and one before be had again
    print_line("; ".join(f"{command} {what}" for command, what in COMMANDS.items()))
    while True:
        try:
            if quiet:  # standard output belongs to the document
                print("> ", end="", file=sys.stderr, flush=True)
            yield input("" if quiet else "> ")
        except EOFError:
            print(file=sys.stderr)
            return


def _read() -> Iterator[str]:
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    for line in sys.stdin:
        yield line.removesuffix("\n")


def _obey(talk: Chat, line: str) -> bool:
    """Do what a command says; return whether it asks for a reply."""
    from andrea.progress import print_line

    command = line.split()[0]
    if command == "/again" and talk.begun:
        return True
    if command == "/new":
        talk.forget()
    elif command == "/again":
        print_line("there is no reply yet")
    else:
        known = "; ".join(f"{name} {what}" for name, what in COMMANDS.items())
        print_line(known if command == "/help" else f"there is no command {command}; {known}")
    return False


def _reply(talk: Chat, line: str, quiet: bool, speed: bool) -> tuple[Written, str]:
    """Print a reply as it comes; return it, and the signal that ended it."""
    from andrea.chat import BEGUN
    from andrea.conversations import PROMPT, Turn
    from andrea.interrupts import Interrupts
    from andrea.progress import print_line

    again = line.startswith("/again")
    if not quiet:
        if not sys.stdin.isatty():
            print(harmless(Turn(PROMPT, talk.said if again else line).render()))
        _print_now(BEGUN)
    stopwatch = Stopwatch()

    def show(new: str) -> None:
        stopwatch.text_came()
        if not quiet:
            _print_now(new)

    with Interrupts() as interrupts:
        how = (show, interrupts.stop_asked)
        reply = talk.again(*how) if again else talk.reply(line, *how)
    if not quiet:
        print()
    if speed:
        print_line(stopwatch.report(reply.tokens))
    return reply, interrupts.stopped_by
