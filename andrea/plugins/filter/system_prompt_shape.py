"""filter.system_prompt_shape: documents that look like instructions to an assistant, by shape and never by phrase.

Such a text speaks to its reader: line after line says what "you" are to do, or begins with a verb in the imperative.
It is long, stands before the first turn of a conversation or has none behind it, and is often a list under headings.
Only pronouns and the other small words that every English text has are known here, no verb and no phrase.
"""

from __future__ import annotations

import re

from attrs import frozen

from andrea import AndreaError, Document, hookimpl, option, plugin

_TURN = re.compile(r"^[<>] ", re.MULTILINE)
_ITEM = re.compile(r"\s*(?:[-*+\u2022\u2013]|\(?\d{1,2}[.)]|\(?[a-z][.)])\s+")
_HEADING = re.compile(
    r"\s*(?:#{1,6} .+|<[/\w][^<>]{0,40}>|\*\*[^*]{1,60}\*\*:?|[A-Z][^.!?]{0,50}:|[A-Z][A-Z \d&/'-]{2,50}:?)\s*"
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)?")
_SECOND_PERSON = re.compile(r"\byou", re.IGNORECASE)
_READ = 4000  # characters of a block that are looked at

# The small words of English by their class; nothing here says what a text is about.
_ARTICLES = "a an the this that these those some any each every all both no many much more most several such"
_OTHERS = "he it she they him her them its his their"
_ASKING = "who whom whose which what when where why how there here one"
_PLACES = (
    "of in on at by for from with without within to into onto over under between among through during before after "
    "about against as like than near since until upon per via beyond behind across along"
)
_JOINING = "and or but nor so yet if unless because although though while whether"
_HELPING = "is are was were am has had does did will would shall could may might must"
_VERBAL = "be been being have do should can not very too also just even still again then now"
_SECOND = frozenset("you your yours yourself you're you'll you've you'd".split())  # noqa: SIM905
_FIRST = frozenset("i me my mine myself i'm i'll i've i'd we us our ours".split())  # noqa: SIM905
_THIRD = frozenset(_OTHERS.split()) - {"it", "its"}
_AFTER_VERB = frozenset(f"{_ARTICLES} {_OTHERS} {_ASKING} {_PLACES} {_JOINING} {_VERBAL}".split()) | _SECOND | _FIRST
_SMALL = _AFTER_VERB | frozenset(_HELPING.split())
_OPENERS = frozenset(("never", "always", "please", "only", "don't"))
_NO_BARE_VERB = ("ed", "ing", "ly", "s")


@frozen
class Shape:
    """What the opening block of a document looks like.

    Attributes
    ----------
    characters
        Of the block.
    share
        Of the document that is the block.
    sentences
        Sentences and list items in it.
    second
        Share of them that have a second person.
    directed
        Share of them that have one or begin with an imperative.
    others
        Share of them that have a first person, or a third one that is a person.
    structure
        Share of lines that are list items or headings.
    """

    characters: int
    share: float
    sentences: int
    second: float
    directed: float
    others: float
    structure: float


@plugin
class SystemPromptShape:
    """Drop documents that are mostly instructions to an assistant, as their opening block shows."""

    min_characters: int = option(160, help="a shorter opening block is never one")
    min_sentences: int = option(4, help="fewest sentences and items of the block")
    min_share: float = option(0.2, help="part of the document that the block must be, unless it is very long")
    very_long: int = option(1500, help="characters from which the block counts whatever follows it")
    min_directed: float = option(0.6, help="share of its sentences that speak to the reader or are imperatives")
    min_second: float = option(0.15, help="share of its sentences that have a second person")
    max_others: float = option(0.25, help="share of its sentences that may have I, we, he, she or they")
    structured_directed: float = option(0.34, help="as min_directed, for a block that is a list under headings")
    min_structure: float = option(0.3, help="share of lines that are items or headings, which makes it such a block")

    def __attrs_post_init__(self) -> None:
        names = [f.name for f in type(self).__attrs_attrs__ if f.type == "float"]  # type: ignore[attr-defined]
        if wrong := [name for name in names if not 0 <= getattr(self, name) <= 1]:
            raise AndreaError(
                f"filter.system_prompt_shape.{wrong[0]} is {getattr(self, wrong[0])}", "shares are from 0 to 1"
            )

    @hookimpl
    def keep_document(self, document: Document) -> str | None:
        """Say that a document has the shape."""
        if self.min_second > 0 and not _SECOND_PERSON.search(document.text):
            return None  # soon said of most texts
        return "shape of a system prompt" if self.fits(shape_of(document.text, self.min_characters)) else None

    def fits(self, shape: Shape | None) -> bool:
        """Say whether a shape is that of instructions."""
        if shape is None or shape.sentences < self.min_sentences:
            return False
        if shape.share < self.min_share and shape.characters < self.very_long:
            return False
        if shape.second < self.min_second or shape.others > self.max_others:
            return False
        structured = shape.structure >= self.min_structure
        return shape.directed >= (self.structured_directed if structured else self.min_directed)


def shape_of(text: str, least: int) -> Shape | None:
    """Return the shape of the opening block of a text; None when it has less than `least` characters."""
    opening = _opening(text)
    if len(opening) < least:
        return None
    lines = [line for line in opening[:_READ].split("\n") if line.strip()]
    items = [bool(_ITEM.match(line)) for line in lines]
    headings = [not item and bool(_HEADING.fullmatch(line)) for line, item in zip(lines, items, strict=True)]
    sentences = _sentences(lines, items, headings)
    words = [_WORD.findall(sentence.lower().replace("\u2019", "'")) for sentence in sentences]
    words = [one for one in words if one]
    count = max(1, len(words))
    second = sum(not _SECOND.isdisjoint(one) for one in words) / count
    directed = sum(not _SECOND.isdisjoint(one) or _is_imperative(one) for one in words) / count
    others = sum(not _FIRST.isdisjoint(one) or not _THIRD.isdisjoint(one) for one in words) / count
    structure = (sum(items) + sum(headings)) / len(lines)
    return Shape(len(opening), len(opening) / len(text), len(words), second, directed, others, structure)


def _opening(text: str) -> str:
    """Return what stands before the first turn."""
    turn = _TURN.search(text)
    return text[: turn.start()] if turn else text


def _sentences(lines: list[str], items: list[bool], headings: list[bool]) -> list[str]:
    """Return sentences; an item begins one, and a heading is none. Lines of a paragraph belong together."""
    parts: list[str] = []
    fresh = True
    for line, item, heading in zip(lines, items, headings, strict=True):
        if heading:
            fresh = True
        elif item or fresh:
            parts.append(_ITEM.sub("", line, count=1) if item else line)
            fresh = False
        else:
            parts[-1] += f" {line.strip()}"
    return [sentence for part in parts for sentence in _SENTENCE.split(part)]


def _is_imperative(words: list[str]) -> bool:
    """Say whether a sentence begins with a word that looks like a bare verb, with what a verb takes behind it."""
    if words[0] in _OPENERS or words[:2] == ["do", "not"]:
        return len(words) > 1
    if len(words) < 3 or words[0] in _SMALL or words[0].endswith(_NO_BARE_VERB):
        return False
    return words[1] in _AFTER_VERB
