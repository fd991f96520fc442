"""``andrea sample`` and ``andrea chat``: what is printed, streamed or not, and what is refused."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

CPU = ("--device", "cpu")
DRAWS = ("--top-k", 40, "--top-p", 0.9, "--temperature", 0.8, "--repetition-penalty", 1.1)


@pytest.fixture
def trained(andrea, experiment, current_folder):
    """Return the folder of a tiny run of 20 steps."""
    ended = andrea("run", experiment, "--out", "run", "--steps", 20, *CPU)
    assert ended.code == 0, ended.err
    return current_folder / "run"


def sampled(andrea, trained, *arguments):
    """Return the JSON document of `andrea sample`."""
    ended = andrea("sample", trained, *arguments, "--json", *CPU)
    assert ended.code == 0, ended.err
    return json.loads(ended.out)


# -- sample ------------------------------------------------------------------------------------------------------------


def test_streamed_or_not_a_text_is_the_same(andrea, trained):
    """What is printed as it comes is what the document holds; a seed decides it."""
    how = ("--prompt", "seed ", "--tokens", 60, *DRAWS)
    first = sampled(andrea, trained, *how, "--seed", 3)
    streamed = andrea("sample", trained, *how, "--seed", 3, *CPU)

    assert streamed.out == "seed " + first["samples"][0]["text"] + "\n"
    assert first == sampled(andrea, trained, *how, "--seed", 3)
    assert first["samples"] != sampled(andrea, trained, *how, "--seed", 4)["samples"]
    assert first["seed"] == 3
    assert first["samples"][0]["tokens"] == 60
    assert first["samples"][0]["ended"] == "length"


def test_the_options_reach_the_draws(andrea, trained):
    """Each of them changes the text; top-k 1 is greedy."""
    how = ("--prompt", "seed ", "--tokens", 40)
    plain = sampled(andrea, trained, *how)["samples"]
    for name, value in (("--top-k", 3), ("--top-p", 0.3), ("--temperature", 0.3), ("--repetition-penalty", 3)):
        assert sampled(andrea, trained, *how, name, value)["samples"] != plain
    assert sampled(andrea, trained, *how, "--top-k", 1) == sampled(andrea, trained, *how, "--temperature", 0)


def test_a_stop_string_ends_a_text(andrea, trained):
    """The text ends before it, printed or in the document, and the document says why."""
    how = ("--prompt", "seed ", "--tokens", 60)
    whole = sampled(andrea, trained, *how)["samples"][0]["text"]
    stop = whole[20:22]
    one = sampled(andrea, trained, *how, "--stop", stop, "--stop", "never to be found")["samples"][0]

    assert one["text"] == whole[: whole.index(stop)]
    assert one["ended"] == "stop"
    assert one["tokens"] < 60
    assert andrea("sample", trained, *how, "--stop", stop, *CPU).out == f"seed {one['text']}\n"


def test_many_prompts_from_a_file(andrea, trained, current_folder):
    """More prompts than rows at once: every row draws for itself, and the file's order is kept."""
    lines = [f"seed {n}" for n in range(9)]
    (current_folder / "prompts.txt").write_text("\n\n".join(lines) + "\n")
    document = sampled(andrea, trained, "--prompts", "prompts.txt", "--tokens", 7)
    assert [one["prompt"] for one in document["samples"]] == lines

    values = [json.dumps({"prompt": line, "id": 1}) for line in lines[:5]] + [json.dumps(line) for line in lines[5:]]
    (current_folder / "prompts.jsonl").write_text("\r\n".join(values))
    assert sampled(andrea, trained, "--prompts", "prompts.jsonl", "--tokens", 7) == document

    printed = andrea("sample", trained, "--prompts", "prompts.txt", "--tokens", 7, *CPU).out
    rule = "\n" + "-" * 40 + "\n"
    assert printed == f"\n{rule}".join(o["prompt"] + o["text"] for o in document["samples"]) + "\n"


def test_prompts_from_the_input(andrea, trained, monkeypatch):
    """``--prompts -`` reads standard input, and ``--prompt`` comes before."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("two\nthree\n"))
    document = sampled(andrea, trained, "--prompts", "-", "--prompt", "one", "--count", 2, "--tokens", 3)
    assert [one["prompt"] for one in document["samples"]] == ["one", "one", "two", "two", "three", "three"]
    assert document["samples"][0]["text"] != document["samples"][1]["text"]


def test_speed_is_said(andrea, trained):
    """``--speed`` tells tokens, seconds and the first text, beside and not within the result."""
    ended = andrea("sample", trained, "--tokens", 5, "--speed", *CPU)
    assert "tokens/s; first text after 0." in ended.err
    assert "tokens/s" not in ended.out


def test_a_command_line_that_is_not_utf8(andrea, trained):
    """Its bytes reach the model as they are and are printed as something that can be printed."""
    document = sampled(andrea, trained, "--prompt", "a\udcff", "--tokens", 3)
    assert document["samples"][0]["prompt"] == "a\ufffd"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--prompts", "gone.txt"], "cannot read gone.txt"),
        (["--prompts", "empty.txt"], "empty.txt has no prompts"),
        (["--prompts", "latin.txt"], "latin.txt is not UTF-8 text"),
        (["--prompts", "bad.jsonl"], "bad.jsonl, line 2 is not JSON"),
        (["--prompts", "other.jsonl"], "other.jsonl, line 1 has no prompt"),
        (["--prompts", "half.jsonl"], "half.jsonl, line 1 is not text"),
        (["--stop", ""], "a stop string is empty"),
        (["--top-p", "0"], "top_p is 0"),
        (["--repetition-penalty", "0"], "repetition_penalty is 0"),
    ],
)
def test_what_makes_no_sense_is_refused(andrea, trained, current_folder, arguments, said):
    """Files without prompts and options out of range, before anything is written."""
    (current_folder / "empty.txt").write_text("\n \n")
    (current_folder / "latin.txt").write_bytes(b"caf\xe9")
    (current_folder / "bad.jsonl").write_text('"fine"\n{"prompt": \n')
    (current_folder / "other.jsonl").write_text('{"text": "a"}\n')
    (current_folder / "half.jsonl").write_text('"\\ud800"\n')
    ended = andrea("sample", trained, *arguments, *CPU)
    assert ended.code == 2
    assert said in ended.err
    assert ended.out == ""


def start(*arguments, **how):
    """Start a command of its own."""
    return subprocess.Popen([sys.executable, "-m", "andrea", *map(str, arguments)], text=True, **how)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_text(trained, number, code):
    """What has been written is printed and the command ends at once, with the signal's code."""
    with start(
        "sample", trained, "--tokens", 10**6, *CPU, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout.read(20)
        process.send_signal(number)
        rest = process.communicate(timeout=20)[0]
    assert process.returncode == code
    assert rest.endswith("\n")


# -- chat --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def talk(andrea, trained, monkeypatch):
    """Return a function that gives `andrea chat` its input as a file would."""

    def call(lines, *arguments):
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        return andrea("chat", trained, "--tokens", 12, *arguments, *CPU)

    return call


def test_a_conversation_from_a_file(talk):
    """The transcript is printed in the form of the training text; a seed decides it, and JSON holds the same."""
    lines = "seed?\n\nroot\n"
    ended = talk(lines, "--seed", 5)
    assert ended.code == 0, ended.err
    assert ended.out == talk(lines, "--seed", 5).out
    assert ended.out != talk(lines, "--seed", 6).out
    document = json.loads(talk(lines, "--seed", 5, "--json").out)

    assert [turn["prompt"] for turn in document["turns"]] == ["seed?", "root"]
    assert set(document["turns"][0]) == {"prompt", "text", "tokens", "ended"}
    assert ended.out.startswith("> seed?\n<")
    assert "\n> root\n<" in ended.out
    for turn in document["turns"]:
        assert turn["text"].split("\n")[0] in ended.out


def test_commands_of_a_conversation(talk):
    """/again replies once more, /new forgets, /quit ends, and an unknown one is said and not sent."""
    ended = talk("/again\nseed\n/again\n/new\n/what\n/help\nseed\n/quit\nroot\n", "--json")
    turns = json.loads(ended.out)["turns"]

    assert [turn["prompt"] for turn in turns] == ["seed"] * 3
    assert turns[0]["text"] != turns[1]["text"]
    assert "there is no reply yet" in ended.err
    assert "there is no command /what; /again another reply" in ended.err


def test_a_conversation_is_refused_as_a_sample_is(talk):
    """Options out of range end it before the model is opened."""
    for arguments, said in ((("--top-p", 0), "top_p"), (("--stop", ""), "stop string is empty")):
        ended = talk("seed\n", *arguments)
        assert ended.code == 2
        assert said in ended.err


def test_a_terminal(trained):
    """A person types at a prompt, sees a reply grow, ends one with Ctrl-C, goes on, and ends with Ctrl-D."""
    ours, theirs = pty.openpty()
    process = start(
        "chat", trained, "--tokens", 4000, *CPU, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)

    def read_until(text, seconds=60):
        seen, end = "", time.monotonic() + seconds
        while text not in seen and time.monotonic() < end:
            seen += os.read(ours, 4096).decode(errors="replace")
        assert text in seen, seen
        return seen

    assert "/again another reply" in read_until("> ")
    os.write(ours, b"seed\n")
    read_until("<")
    read_until("e")
    process.send_signal(signal.SIGINT)
    read_until("\n> ")
    os.write(ours, b"/new\n")
    read_until("> ")
    os.write(ours, b"\x04")
    assert process.wait(timeout=20) == 0
    os.close(ours)
