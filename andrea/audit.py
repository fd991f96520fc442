"""An audit: texts of one or more checkpoints from the same prompts and seeds, in an order that hides whose they are.

AUDIT/audit.json      what was asked: checkpoints, prompts by domain, how texts are drawn, the seed of the order
AUDIT/samples.jsonl   every text with its origin, as it was drawn: with audit.json it is the key of the sheet
AUDIT/sheet.html      the sheet, to grade in a browser; AUDIT/sheet.csv, to grade in a table program
AUDIT/grades/*.csv    one file for each grader
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cattrs
from attrs import field, frozen

from andrea.checkpoint import complete_steps, stem
from andrea.engine import GenerateOptions
from andrea.errors import AndreaError
from andrea.folder_lock import FolderLock
from andrea.resources import experiments_folder
from andrea.rng import Draws
from andrea.run_data import cache_folder
from andrea.strict_json import read_json, structure
from andrea.tokenfile import TokenFile, write_whole
from andrea.tokens import reopen
from andrea.trained import Found, Model

ALL = "all"  # every domain together
LOWEST, HIGHEST = 0, 10
BEGINNING = 16  # tokens of a held-out document that make a prompt
ROWS = 8  # texts drawn at once: what an interruption loses at most
RUBRIC = (
    "Grade each text from 0 to 10 as a continuation of its prompt, which stands in bold. "
    "0: noise, or one thing over and over. 3: words that belong together, sentences that do not hold. "
    "5: mostly whole sentences that keep to the subject. 8: reads well, with slips of fact or logic. "
    "10: a knowledgeable person could have written it. That a text breaks off at its end does not count."
)


@frozen
class Questions:
    """What a file of prompts says.

    Attributes
    ----------
    domains
        Prompts by domain: grades are reported for each.
    rubric
        What graders are told.
    """

    domains: dict[str, tuple[str, ...]]
    rubric: str = RUBRIC

    def __attrs_post_init__(self) -> None:
        if not self.domains:
            raise AndreaError("there is no domain", '{"domains": {"biology": ["Plants take in light and"]}}')
        for domain, prompts in self.domains.items():
            if not domain.strip() or domain == ALL or not prompts:
                hint = f"one prompt or more under a name that is not {ALL!r}, which stands for all domains"
                raise AndreaError(f"the domain {domain!r} has {len(prompts)} prompts", hint)
            if twice := sorted({prompt for prompt in prompts if prompts.count(prompt) > 1}):
                raise AndreaError(f"the domain {domain!r} has the prompt {twice[0]!r} twice", "name each once")
        if not self.rubric.strip():
            raise AndreaError("the rubric is empty", "say what is graded, or leave it out")


@frozen
class Judged:
    """A checkpoint of an audit: its run's folder, its completed updates, and the digest of its weights."""

    folder: str
    step: int
    sha256: str

    @property
    def label(self) -> str:
        """How the report calls it."""
        return f"{self.folder} step {self.step}"

    @property
    def path(self) -> Path:
        """Of its file."""
        return Path(self.folder) / "checkpoints" / f"{stem(self.step)}.json"


@frozen
class Audit:
    """What was asked.

    Attributes
    ----------
    checkpoints
        Whose texts are compared; the first one is what the others are compared with.
    questions
        Prompts and rubric.
    draws
        Texts for each prompt and checkpoint.
    tokens, temperature, top_p
        How a text is drawn.
    seed
        Of the draws, which are the same for every checkpoint, and of the order.
    """

    checkpoints: tuple[Judged, ...]
    questions: Questions
    draws: int = 1
    tokens: int = 160
    temperature: float = 0.7
    top_p: float = 0.95
    seed: int = 0

    def __attrs_post_init__(self) -> None:
        labels = [one.label for one in self.checkpoints]
        if not labels or len(set(labels)) < len(labels):
            raise AndreaError(f"the checkpoints are {', '.join(labels) or 'none'}", "one or more, each named once")
        if self.draws < 1 or self.tokens < 1:
            raise AndreaError(f"--draws is {self.draws} and --tokens {self.tokens}", "both must be at least 1")

    @property
    def prompts(self) -> list[tuple[str, str]]:
        """(domain, prompt) of every prompt, in order."""
        return [(domain, text) for domain, texts in self.questions.domains.items() for text in texts]

    @property
    def digest(self) -> str:
        """Hex digest of all that was asked."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Return what ``audit.json`` holds."""
        return json.dumps(cattrs.unstructure(self), indent=1)


@frozen
class Drawn:
    """One text and its origin: indices into `Audit.checkpoints` and `Audit.prompts`, and the number of the draw."""

    checkpoint: int
    prompt: int
    draw: int
    text: str


@frozen
class Sheet:
    """The texts in the order in which they are graded.

    Attributes
    ----------
    audit
        What was asked.
    items
        Every text; the first one is number 1 of the sheet.
    name
        Digest of what a grader sees: grades name it, so that they cannot be read as those of another sheet.
    """

    audit: Audit
    items: tuple[Drawn, ...]
    name: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        seen = json.dumps([self.audit.questions.rubric, *(self.shown(item) for item in self.items)])
        # Not digits alone, which a table program would take for a number.
        object.__setattr__(self, "name", f"sheet-{hashlib.sha256(seen.encode()).hexdigest()[:12]}")

    def shown(self, item: Drawn) -> tuple[str, str]:
        """Return (prompt, text) as a grader sees it."""
        return self.audit.prompts[item.prompt][1], item.text


# -- asking ------------------------------------------------------------------------------------------------------------


def read_questions(path: Path | None) -> Questions:
    """Read a file of prompts; the one that comes with the package when None."""
    file = path or experiments_folder() / "audit" / "prompts.json"
    questions: Questions = structure(read_json(file), Questions, str(file))
    return questions


def held_out_questions(found: Found, count: int) -> Questions:
    """Return prompts that are the beginnings of held-out documents: a domain for each source of a model's run.

    A source has as many prompts as it has held-out documents with different beginnings, at most `count`.
    """
    prepared = reopen(cache_folder(), str(found.snapshot.record["data_sha256"]), found.hooks.make_tokenizer)
    domains = {}
    for source in prepared.sources:
        file, beginnings = TokenFile.open(source.held_out), dict[str, None]()
        for index in range(file.documents):
            beginning = prepared.tokenizer.decode(file.document(index)[:BEGINNING]).decode(errors="ignore").strip()
            if beginning and len(beginnings) < count:
                beginnings[beginning] = None
        if beginnings:
            domains[source.name] = tuple(beginnings)
    return Questions(domains)


def find_checkpoint(path: Path) -> Judged:
    """Return the checkpoint that is meant by a run's folder, whose newest it is, or by the path of one of its files.

    Raises
    ------
    AndreaError
        When there is none.
    """
    folder = path if path.is_dir() else path.parent.parent
    steps = complete_steps(folder / "checkpoints")
    wanted = [steps[-1]] if path.is_dir() and steps else [step for step in steps if stem(step) == path.stem]
    if not wanted:
        names = f"those of {folder} are {', '.join(map(stem, steps))}" if steps else "andrea run makes one"
        raise AndreaError(f"there is no run or checkpoint {path}", names)
    record = read_json(folder / "checkpoints" / f"{stem(wanted[0])}.json")
    return Judged(str(folder), wanted[0], str(record["sha256"]["bin"]))


# -- drawing -----------------------------------------------------------------------------------------------------------


def draw(
    audit: Audit, folder: Path, open_: Callable[[Judged], Model], tell: Callable[[str, int, int], None]
) -> list[Drawn]:
    """Draw the texts that are missing, each checkpoint after the other; what is drawn is kept at once.

    A text's random numbers depend on the seed and on the numbers of its prompt and draw, so that checkpoints differ by
    their weights alone, however many texts are drawn at once.

    Parameters
    ----------
    audit, folder
        What, and where.
    open_
        Opens a checkpoint.
    tell
        Hears how far it is.

    Raises
    ------
    AndreaError
        When the folder holds another audit or something else, or another process draws there.
    """
    _refuse_other(folder, audit)
    folder.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(folder)
    try:
        _refuse_other(folder, audit)  # again: somebody may have been quicker
        write_whole(folder / "audit.json", audit.to_json().encode())
        return _draw_missing(audit, folder / "samples.jsonl", open_, tell)
    finally:
        lock.release()


def _refuse_other(folder: Path, audit: Audit) -> None:
    asked = folder / "audit.json"
    if asked.exists() and asked.read_text(encoding="utf-8") != audit.to_json():
        raise AndreaError(f"{folder} holds another audit", "name another folder with --out, or leave it out")
    if not asked.exists() and folder.is_dir() and any(path.name != "lock" for path in folder.iterdir()):
        raise AndreaError(f"{folder} is not empty and holds no audit", "name another folder with --out")


def _draw_missing(
    audit: Audit, path: Path, open_: Callable[[Judged], Model], tell: Callable[[str, int, int], None]
) -> list[Drawn]:
    drawn = list(_read_samples(path))
    known = {(one.checkpoint, one.prompt, one.draw) for one in drawn}
    total = len(audit.checkpoints) * len(audit.prompts) * audit.draws
    with path.open("ab") as file:
        file.truncate(len(_whole_lines(path)))  # a line that was cut in the middle goes
        for number, checkpoint in enumerate(audit.checkpoints):
            rounds = [one for one in _rounds(audit) if any((number, p, one[0]) not in known for p in one[1])]
            if not rounds:
                continue
            tell(f"drawing from {checkpoint.label}", len(drawn), total)
            model = open_(checkpoint)
            try:
                for draw_number, prompts in rounds:
                    texts = model.generate(
                        [audit.prompts[p][1] for p in prompts], _options(audit, draw_number, prompts, model)
                    )
                    new = [Drawn(number, p, draw_number, text) for p, text in zip(prompts, texts, strict=True)]
                    new = [one for one in new if (number, one.prompt, one.draw) not in known]
                    file.write(b"".join(json.dumps(cattrs.unstructure(one)).encode() + b"\n" for one in new))
                    file.flush()
                    drawn += new
                    tell(f"drawing from {checkpoint.label}", len(drawn), total)
            finally:
                model.engine.close()
    return drawn


def make_sheet(audit: Audit, drawn: Sequence[Drawn]) -> Sheet:
    """Return the texts in their blind order, which depends on the seed and their number alone."""
    ordered = sorted(drawn, key=lambda one: (one.checkpoint, one.prompt, one.draw))
    order = Draws(audit.seed, "audit.order").permutation(len(ordered))
    return Sheet(audit, tuple(ordered[index] for index in order.tolist()))


def read_sheet(folder: Path) -> Sheet:
    """Read the sheet of an audit's folder.

    Raises
    ------
    AndreaError
        When there is none, or texts are missing.
    """
    if not (folder / "audit.json").is_file():
        raise AndreaError(f"{folder} holds no audit", "andrea audit draw RUN... makes one")
    audit: Audit = structure(read_json(folder / "audit.json"), Audit, str(folder / "audit.json"))
    drawn = list(_read_samples(folder / "samples.jsonl"))
    places = [(one.checkpoint, one.prompt, one.draw) for one in drawn]
    wanted = {
        (checkpoint, prompt, number)
        for checkpoint in range(len(audit.checkpoints))
        for prompt in range(len(audit.prompts))
        for number in range(audit.draws)
    }
    if len(places) != len(wanted) or set(places) != wanted:
        raise AndreaError(
            f"{folder} has {len(set(places) & wanted)} of the {len(wanted)} texts that its sheet needs",
            "give the command that began it again: andrea audit draw",
        )
    return make_sheet(audit, drawn)


def _rounds(audit: Audit) -> Iterator[tuple[int, list[int]]]:
    """Yield (draw, prompts) of texts that are drawn at once."""
    count = len(audit.prompts)
    for number in range(audit.draws):
        for begin in range(0, count, ROWS):
            yield number, list(range(begin, min(begin + ROWS, count)))


def _options(audit: Audit, number: int, prompts: Sequence[int], model: Model) -> GenerateOptions:
    """Return how some prompts that follow each other are continued: as if all prompts of all draws were one call."""
    return GenerateOptions(
        audit.tokens,
        audit.temperature,
        top_p=audit.top_p,
        seed=audit.seed,
        stop=(model.tokenizer.bos,),
        first=number * len(audit.prompts) + prompts[0],
    )


def _whole_lines(path: Path) -> bytes:
    """Return a file up to the end of its last whole line; nothing where there is no file."""
    content = path.read_bytes() if path.is_file() else b""
    return content[: content.rfind(b"\n") + 1]


def _read_samples(path: Path) -> Iterator[Drawn]:
    """Yield the texts of a file; a last line that was cut in the middle is left out."""
    for number, line in enumerate(_whole_lines(path).split(b"\n")[:-1], start=1):
        try:
            value: Any = json.loads(line)
        except ValueError:
            raise AndreaError(
                f"{path} is damaged: line {number} is not JSON", "draw it anew into another folder"
            ) from None
        yield structure(value, Drawn, f"{path}, line {number}")
