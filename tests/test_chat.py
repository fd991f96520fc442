"""A conversation: what the model reads, where replies end, what is forgotten, what is drawn anew."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from andrea.chat import Chat
from andrea.engine import GenerateOptions
from andrea.errors import AndreaError
from andrea.plugins.tokenizer.byte import ByteTokenizer
from andrea.trained import Model


class Parrot:
    """An engine that says what it was told to say, and remembers what it read."""

    def __init__(self, *says):
        self.says, self.read, self.options = list(says), [], []

    def generate(self, prompts, options, watch=None):
        """Say the next text, an id for each byte."""
        self.read.append(bytes(prompts[0][1:].tolist()).decode())
        self.options.append(options)
        said = []
        for one in [*self.says.pop(0).encode(), 256][: options.max_tokens]:
            said.append(one)
            if watch(0, one) or one in options.stop:
                break
        return [np.array(said, dtype=np.int32)]


@attrs.frozen
class Shapes:
    """A context."""

    context: int


@attrs.frozen
class Config:
    """A configuration with a model."""

    model: Shapes


def talk(*says, context=1000, tokens=50, **how):
    """Return a conversation with a parrot, and the parrot."""
    parrot = Parrot(*says)
    model = Model(parrot, ByteTokenizer(), 0, Config(Shapes(context)), None, None)
    return Chat(model, GenerateOptions(tokens), **how), parrot


def test_turns_have_the_form_of_the_training_text():
    """The model reads turns as readers write them, and begins its reply behind the mark."""
    chat, parrot = talk(" Fine.\n> and you", " Bye.")
    first = chat.reply("How are\nyou?")
    second = chat.reply("Bye")

    assert (first.prompt, first.text, first.ended) == ("How are\nyou?", "Fine.", "stop")
    assert (second.text, second.ended) == ("Bye.", "end")
    assert parrot.read == ["> How are\n  you?\n<", "> How are\n  you?\n< Fine.\n> Bye\n<"]
    assert chat.transcript == "> How are\n  you?\n< Fine.\n> Bye\n< Bye."


def test_a_reply_of_several_lines():
    """It comes as the transcript has it, and is returned as it is meant."""
    chat, _ = talk(" one\n  two\n\n  three\n< four")
    shown = []
    reply = chat.reply("Count", shown.append)

    assert reply.text == "one\ntwo\n\nthree"
    assert "".join(shown) == " one\n  two\n\n  three"
    assert chat.transcript == "> Count\n< one\n  two\n\n  three"


@pytest.mark.parametrize(
    ("came", "meant"), [("Yes", "Yes"), ("", ""), ("  two", " two"), (" a\n\n", "a"), (" <b\n>c", "<b\n>c")]
)
def test_a_reply_in_no_form(came, meant):
    """A model that has not learned the form still replies: only one space is taken off."""
    chat, _ = talk(came)
    assert chat.reply("?").text == meant
    assert chat.transcript == "> ?\n<" + came.rstrip("\n")


def test_every_reply_draws_for_itself():
    """Replies are numbered, another try too, which takes the place of the one before."""
    chat, parrot = talk(" a", " b", " c")
    assert not chat.begun
    chat.reply("one")
    assert chat.again().text == "b"
    chat.reply("two")

    assert [options.first for options in parrot.options] == [0, 1, 2]
    assert parrot.read[:2] == ["> one\n<"] * 2
    assert chat.transcript == "> one\n< b\n> two\n< c"


def test_the_opening_stays_and_old_turns_go():
    """When the context is full, the oldest exchanges are left out; the opening never is."""
    chat, parrot = talk(" r1", " r2", " r3", context=60, tokens=20, opening="Be kind.")
    for said in ("first", "second", "third"):
        chat.reply(said)

    assert parrot.read[0] == "Be kind.\n> first\n<"
    assert parrot.read[1] == "Be kind.\n> first\n< r1\n> second\n<"
    # With the first exchange it would be 1 + 52 ids; 40 leave room for a reply.
    assert parrot.read[2] == "Be kind.\n> second\n< r2\n> third\n<"
    chat.forget()
    assert chat.transcript == "Be kind."


def test_a_prompt_without_room_is_read_all_the_same():
    """A prompt longer than the context goes to the engine alone, whose window slides."""
    chat, parrot = talk(" a", " b", context=10, tokens=20)
    chat.reply("x" * 30)
    chat.reply("y" * 30)
    assert parrot.read[1] == "> " + "y" * 30 + "\n<"


def test_a_stop_of_the_users_ends_a_reply():
    """Beside the marks of turns; an empty one is refused."""
    chat, _ = talk(" one. two. three")
    assert chat.reply("?").text == "one. two. three"
    chat, _ = talk(" one. two. three", stops=(". ",))
    assert chat.reply("?").text == "one"
    with pytest.raises(AndreaError, match="stop string is empty"):
        talk(stops=("",))


def test_a_person_ends_a_reply():
    """What has come stays in the conversation."""
    chat, _ = talk(" abcdef")
    asked = []
    reply = chat.reply("?", halt=lambda: asked.append(1) or len(asked) == 4)
    assert (reply.text, reply.tokens, reply.ended) == ("abc", 4, "interrupted")
    assert chat.transcript == "> ?\n< abc"
