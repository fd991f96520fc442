"""Labelled texts made from small grammars: instructions to an assistant in many shapes, and what is none."""

from __future__ import annotations

import random


def words(text):
    """Return the words of a text."""
    return text.split()


ROLES = words("tutor librarian gardener translator analyst pilot chemist nurse poet lawyer merchant historian cook")
FIELDS = words("grammar botany taxes sailing music geometry law trade medicine weather cooking history games")
VERBS = words("explain check compare summarise write list answer rewrite describe translate mention state keep use")
THINGS = words("answer sentence question table example source number name reason summary note error paragraph")
HOW = ["briefly", "calmly", "in full", "in order", "with care", "on one line", "in plain words", "step by step"]
ADJECTIVES = words("short old careful plain green exact polite early common strange warm final")
NOUNS = words("river house letter captain garden winter machine village teacher window forest road child song")
PAST = words("walked turned found carried opened left heard remembered followed crossed lost built sold")
NAMES = words("Anna Peter Maria John Ruth Karl Ines Tom")


class Maker:
    """Makes texts from a seed."""

    def __init__(self, seed):
        self.draw = random.Random(seed)

    def one(self, words):
        return self.draw.choice(words)

    def some(self, make, least, most):
        return [make() for _ in range(self.draw.randint(least, most))]

    # -- instructions ----------------------------------------------------------------------------------------------

    def order(self):
        """Return a sentence that tells the reader what to do."""
        verb, thing, other = self.one(VERBS), self.one(THINGS), self.one(THINGS)
        return self.one(
            [
                f"{verb.capitalize()} the {thing} {self.one(HOW)}.",
                f"{verb.capitalize()} every {thing} before the {other}.",
                f"Never {verb} a {thing} without a {other}.",
                f"Do not {verb} more than one {thing} for each {other}.",
                f"Always {verb} the {self.one(ADJECTIVES)} {thing}, and then {self.one(VERBS)} the {other}.",
                f"You must {verb} the {thing} {self.one(HOW)}.",
                f"You may {verb} a {self.one(ADJECTIVES)} {thing} when your {other} allows it.",
                f"If the user asks for a {thing}, {verb} your {other} {self.one(HOW)}.",
                f"When a {thing} is missing, {verb} it to the user {self.one(HOW)}.",
                f"Your {thing} should be {self.one(ADJECTIVES)} and {self.one(ADJECTIVES)}.",
            ]
        )

    def who(self):
        """Return a sentence that says who the reader is."""
        role, field = self.one(ROLES), self.one(FIELDS)
        return self.one(
            [
                f"You are a {self.one(ADJECTIVES)} {role} who knows {field} well.",
                f"You will act as a {role} for people with questions of {field}.",
                f"Your task is to help a {role} with {field} and {self.one(FIELDS)}.",
                f"As a {role}, you answer questions about {field}.",
                f"From now on you play {self.one(NAMES)}, a {self.one(ADJECTIVES)} {role}.",
            ]
        )

    def paragraph(self):
        return " ".join([self.who(), *self.some(self.order, 4, 12)])

    def bullets(self):
        mark = self.one(["- ", "* ", "1. ", "\u2022 "])
        orders = self.some(self.order, 3, 9)
        return "\n".join((f"{i}. " if mark == "1. " else mark) + order for i, order in enumerate(orders, 1))

    def sections(self):
        style = self.one(["## {}", "{}:", "**{}**", "<{}>"])
        parts = [self.who()]
        for _ in range(self.draw.randint(2, 4)):
            parts += [style.format(self.one(THINGS).capitalize()), self.one([self.bullets, self.paragraph])()]
        return "\n".join(parts)

    def instructions(self):
        """Return a system prompt, by itself or with a short exchange behind it."""
        text = self.one([self.paragraph, self.sections, self.sections, lambda: f"{self.who()}\n\n{self.bullets()}"])()
        if self.draw.random() < 0.4:
            text += "\n" + self.exchange(1)
        return text

    # -- what is none ----------------------------------------------------------------------------------------------

    def told(self):
        """Return a sentence of a story."""
        return self.one(
            [
                f"{self.one(NAMES)} {self.one(PAST)} the {self.one(ADJECTIVES)} {self.one(NOUNS)}.",
                f"He {self.one(PAST)} a {self.one(NOUNS)}, and she {self.one(PAST)} it in the {self.one(NOUNS)}.",
                f"The {self.one(NOUNS)} was {self.one(ADJECTIVES)}, like every {self.one(NOUNS)} of that time.",
                f'"You {self.one(PAST)} my {self.one(NOUNS)}," said {self.one(NAMES)}.',
                f'"Give me your {self.one(NOUNS)}," she said, and he {self.one(PAST)} away.',
                f"I {self.one(PAST)} the {self.one(NOUNS)} that you gave me.",
            ]
        )

    def said(self):
        """Return a sentence of an article."""
        return self.one(
            [
                f"The {self.one(NOUNS)} of {self.one(FIELDS)} has a {self.one(ADJECTIVES)} {self.one(THINGS)}.",
                f"Most of the {self.one(NOUNS)}s were {self.one(ADJECTIVES)} before the {self.one(NOUNS)}.",
                f"A {self.one(NOUNS)} is a {self.one(ADJECTIVES)} {self.one(NOUNS)} with a {self.one(THINGS)}.",
                f"In {self.one(FIELDS)}, the {self.one(THINGS)} depends on the {self.one(NOUNS)}.",
            ]
        )

    def story(self):
        return "\n\n".join(" ".join(self.some(self.told, 3, 7)) for _ in range(self.draw.randint(2, 5)))

    def article(self):
        title = f"# {self.one(FIELDS).capitalize()}\n\n" if self.draw.random() < 0.5 else ""
        items = "\n".join(f"- {sentence}" for sentence in self.some(self.said, 2, 6))
        return f"{title}{' '.join(self.some(self.said, 4, 9))}\n\n{items}\n\n{' '.join(self.some(self.said, 2, 5))}"

    def commit(self):
        verbs = self.some(lambda: self.one(VERBS).capitalize(), 2, 9)
        lines = [f"* src/{self.one(NOUNS)}.c: {verb} the {self.one(THINGS)} of a {self.one(NOUNS)}." for verb in verbs]
        return f"{self.one(VERBS).capitalize()} the {self.one(THINGS)} in {self.one(FIELDS)}\n\n" + "\n".join(lines)

    def recipe(self):
        steps = self.some(lambda: f"{self.one(VERBS).capitalize()} the {self.one(NOUNS)} {self.one(HOW)}.", 5, 10)
        return f"{self.one(NOUNS).capitalize()} pie\n\n" + "\n".join(f"{i}. {step}" for i, step in enumerate(steps, 1))

    def entry(self):
        senses = [f"{i}. {self.said()}" for i in range(1, self.draw.randint(3, 8))]
        return f"{self.one(NOUNS)} \\{self.one(NOUNS)}\\, n.\n" + "\n".join(senses)

    def letter(self):
        body = [*self.some(self.told, 3, 6), f"I hope that you {self.one(PAST)} our {self.one(NOUNS)}."]
        self.draw.shuffle(body)
        return f"Dear {self.one(NAMES)},\n\n{' '.join(body)}\n\nYours, {self.one(NAMES)}"

    def exchange(self, least):
        """Return turns of a conversation."""
        turns = []
        for _ in range(self.draw.randint(least, least + 5)):
            turns.append(f"> Can you {self.one(VERBS)} the {self.one(NOUNS)}?")
            turns.append(f"< {' '.join(self.some(self.said, 1, 4))}")
        return "\n".join(turns)

    def conversation(self):
        """Return turns, now and then with an opening so short that it matters little."""
        opening = f"{self.who()}\n" if self.draw.random() < 0.4 else ""
        return opening + self.exchange(3)

    def other(self):
        kinds = [self.story, self.article, self.commit, self.recipe, self.entry, self.letter, self.conversation]
        return self.one(kinds)()
