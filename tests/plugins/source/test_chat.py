"""source.chat renders messages, ShareGPT conversations and IRC logs as turns."""

from __future__ import annotations

import json

import pytest

from andrea import AndreaError, SourceSpec
from andrea.plugins.source import chat


def read(**options):
    documents = chat.open_source(SourceSpec("s", "source.chat", options))
    first = list(documents)
    assert first == list(documents), "reading twice must give the same"
    return first


def test_messages_and_sharegpt(tmp_path):
    """Both give the same text; each row is a conversation of its own, or the work that a column names."""
    turns = [("system", "Be brief."), ("user", "Hi\nthere"), ("assistant", "Hello")]
    messages = {"messages": [{"role": role, "content": text} for role, text in turns], "id": 7}
    names = {"system": "system", "user": "human", "assistant": "gpt"}
    sharegpt = {"conversations": [{"from": names[role], "value": text} for role, text in turns], "id": 7}
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, [messages, sharegpt])), encoding="utf-8")
    documents = read(path=str(tmp_path))
    assert [d.text for d in documents] == ["Be brief.\n> Hi\n  there\n< Hello"] * 2
    assert len({d.group for d in documents}) == 2
    assert {d.group for d in read(path=str(tmp_path), group="id")} == {"7"}
    assert [d.text for d in read(path=str(tmp_path), system=False)] == ["> Hi\n  there\n< Hello"] * 2
    assert read(path=str(tmp_path), where={"id": 8}) == []


def test_a_long_conversation_stays_one_work(tmp_path):
    """Its pieces begin with prompts and share their group."""
    messages = [{"role": role, "content": "word " * 30} for _ in range(20) for role in ("user", "assistant")]
    (tmp_path / "a.json").write_text(json.dumps([{"messages": messages}]), encoding="utf-8")
    documents = read(path=str(tmp_path), chunk=400)
    assert len(documents) > 5
    assert len({d.group for d in documents}) == 1
    assert all(d.text.startswith("> ") for d in documents)


LOG = """\
--- Log opened
[12:00] <ann> hello
[12:00] <ann> anyone?
[12:01] -!- bob has joined
[12:01] <@bob> hi ann
[12:02] * bob waves
[12:02] <cy> hey
[12:03] <ann> bye
[14:30] <bob> is someone here
[14:31] <cy> yes
[23:59] <cy> late
[00:10] <bob> indeed
"""


def test_logs_of_irc(tmp_path):
    """Who speaks first prompts, the others reply; what nobody says is left out; silence ends a conversation."""
    (tmp_path / "a.log").write_text(LOG, encoding="utf-8")
    documents = read(path=str(tmp_path))
    assert [d.text for d in documents] == [
        "> hello\n  anyone?\n< hi ann\n< hey\n> bye",
        "> is someone here\n< yes",
        "> late\n< indeed",
    ]
    assert len({d.group for d in documents}) == 3
    assert len(read(path=str(tmp_path), gap=1000)) == 1


@pytest.mark.parametrize("time", ["", "12:01 ", "[12:01:59] ", "2004-05-06 12:01:59 ", "[2004-05-06T12:01] "])
def test_forms_of_log_lines(tmp_path, time):
    """A time in several forms, or none, may stand before the name."""
    for name in ("<ann>", "< ann>", "<+ann>"):
        (tmp_path / "a.txt").write_bytes(f"{time}{name} hi\r\n".encode())
        assert [d.text for d in read(path=str(tmp_path))] == ["> hi"]


def test_encodings(tmp_path):
    """A log that is not UTF-8 is refused with file and byte, or read as it is told."""
    (tmp_path / "a.log").write_bytes("<ann> caf\xe9\n".encode("latin-1"))
    with pytest.raises(AndreaError, match=r"a\.log is not UTF-8: byte 9 is 0xe9"):
        read(path=str(tmp_path))
    assert [d.text for d in read(path=str(tmp_path), encoding="latin-1")] == ["> café"]
    (tmp_path / "a.log").write_bytes("<ann> café\n".encode("utf-16"))
    assert [d.text for d in read(path=str(tmp_path))] == ["> café"]


def test_errors_name_the_row(tmp_path):
    """A row without messages, and one with an unknown role, are named with what to do."""
    (tmp_path / "a.jsonl").write_text('{"talk": []}', encoding="utf-8")
    with pytest.raises(AndreaError, match=r"a\.jsonl line 1 has no field 'messages'"):
        read(path=str(tmp_path))
    (tmp_path / "a.jsonl").write_text('{"messages": [{"role": "cat", "content": "m"}]}', encoding="utf-8")
    with pytest.raises(AndreaError, match=r"line 1: field 'messages' has a message of the role 'cat'"):
        read(path=str(tmp_path))
    assert read(path=str(tmp_path), roles={"cat": "reply"})[0].text == "< m"


@pytest.mark.parametrize(
    ("options", "said", "cure"),
    [
        ({"gap": -1}, "source talk: gap is -1", "from 0 up"),
        ({"roles": {"cat": "replly"}}, "source talk: roles says that 'cat' is 'replly'", "did you mean reply?"),
        ({"roles": {"cat": "dog"}}, "source talk: roles says that 'cat' is 'dog'", "prompt, reply, opening, skip"),
        ({"chunk": -1}, "chunk is -1", "0 to keep works whole"),
        ({"longest_line": 0}, "longest_line is 0", "give the bytes"),
    ],
)
def test_options_that_mean_nothing_are_refused(tmp_path, options, said, cure):
    """Before a file that does not happen to need them passes them over."""
    (tmp_path / "a.jsonl").write_text('{"messages": [{"role": "user", "content": "m"}]}', encoding="utf-8")
    with pytest.raises(AndreaError) as refused:
        list(chat.open_source(SourceSpec("talk", "source.chat", {"path": str(tmp_path), **options})))
    assert said in refused.value.message
    assert cure in refused.value.hint


def test_a_line_that_no_one_wrote_is_refused(tmp_path):
    """Of a log that is one line no more than the longest one is taken into memory; the option allows more."""
    (tmp_path / "a.log").write_text("[12:00] <ann> " + "x" * 100, encoding="utf-8")
    with pytest.raises(AndreaError, match=r"a\.log line 1 is longer than 99 bytes"):
        read(path=str(tmp_path), longest_line=99)
    assert len(read(path=str(tmp_path), longest_line=200)) == 1
