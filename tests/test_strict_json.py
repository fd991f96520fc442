"""JSON is read strictly, and what is malformed is reported with its place."""

from __future__ import annotations

import pytest

from andrea.errors import AndreaError
from andrea.settings import parse_setting
from andrea.strict_json import read_json


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"name": "x",\n  "seed": }', "line 2, column 11"),
        ('{"name": "x"', "line 1, column 13"),
        ("", "line 1, column 1"),
        ("{'name': 1}", "line 1, column 2"),
        ('{"seed": NaN}', "NaN is not a number"),
        ('{"seed": 1, "seed": 2}', "'seed' stands twice"),
    ],
)
def test_malformed_text_is_reported_with_its_place(tmp_path, text, said):
    """A file that is not JSON is named, with line and column or the key."""
    path = tmp_path / "bad.json"
    path.write_text(text)

    with pytest.raises(AndreaError) as caught:
        read_json(path)

    assert str(path) in caught.value.message
    assert said in caught.value.message


def test_a_file_that_is_not_utf8_is_reported(tmp_path):
    """Bytes that are no UTF-8 are an error with the byte's position, not a traceback."""
    path = tmp_path / "bad.json"
    path.write_bytes(b'{"name": "\xff"}')

    with pytest.raises(AndreaError, match=r"not UTF-8 text: .* byte 10"):
        read_json(path)


def test_a_file_that_cannot_be_read_says_why(tmp_path, monkeypatch):
    """The operating system's reason is passed on: no such file, permission denied."""
    with pytest.raises(AndreaError, match="No such file"):
        read_json(tmp_path / "none.json")

    def refuse(path, **_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.read_text", refuse)
    with pytest.raises(AndreaError, match="Permission denied"):
        read_json(tmp_path / "secret.json")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested more than 100 levels deep"),
        ("[" * 500 + "]" * 500, "nested more than 100 levels deep"),
        ("9" * 5000, "too many digits"),
    ],
)
def test_json_that_nobody_means_is_an_error_of_the_users(tmp_path, text, said):
    """Thousands of brackets and digits are refused as a file and as a setting, without a traceback."""
    path = tmp_path / "deep.json"
    path.write_text(f'{{"name": {text}}}')
    with pytest.raises(AndreaError, match=said):
        read_json(path)
    with pytest.raises(AndreaError, match=said) as caught:
        parse_setting(f"engine.x={text}")
    assert caught.value.message.startswith("--set engine.x: ")


def test_json_as_deep_as_anyone_writes_is_read(tmp_path):
    """A hundred levels are allowed, counted with the outermost."""
    path = tmp_path / "deep.json"
    path.write_text("[" * 100 + "]" * 100)
    assert read_json(path)


def test_a_byte_order_mark_is_passed_over(tmp_path):
    """Some editors begin a file of UTF-8 with one."""
    (tmp_path / "x.json").write_bytes(b'\xef\xbb\xbf{"seed": 1}')
    assert read_json(tmp_path / "x.json") == {"seed": 1}
