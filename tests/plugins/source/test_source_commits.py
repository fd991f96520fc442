"""source.commits reads the log of a git repository."""

from __future__ import annotations

import os
import subprocess

import pytest

from andrea import AndreaError, SourceSpec
from andrea.plugins.source import commits

MESSAGES = ["First\n\nWith a body,\n\nof paragraphs.", "Second: naïve 😀", "Third"]


def read(**options):
    documents = commits.open_source(SourceSpec("s", "source.commits", options))
    first = list(documents)
    assert first == list(documents), "reading twice must give the same"
    return first


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    path = tmp_path / "repository"

    def git(*arguments):
        identity = ["-c", "user.name=Author", "-c", "user.email=author@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *arguments], check=True, capture_output=True)

    git("init", str(path))
    for message in MESSAGES:
        git("-C", str(path), "commit", "--allow-empty", "-m", message)
    git("-C", str(path), "commit", "--allow-empty", "--allow-empty-message", "-m", "")
    return path


def test_messages_become_documents(repository):
    """Every message is a document, newest first, its group the commit; one without a message has an empty text."""
    documents = read(path=str(repository))
    assert [d.text for d in documents] == ["", *MESSAGES[::-1]]
    assert len({d.group for d in documents}) == 4
    assert all(d.name == f"commit {d.group}" for d in documents)
    assert [d.text for d in read(path=str(repository), limit=2)] == ["", "Third"]


def test_the_environment_does_not_choose_the_repository(repository, tmp_path, monkeypatch):
    """Variables that point git elsewhere are not followed."""
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert len(read(path=str(repository))) == 4


def test_reading_may_end_early(repository):
    """A reader that stops after one document leaves no process behind."""
    documents = iter(commits.open_source(SourceSpec("s", "source.commits", {"path": str(repository)})))
    assert next(documents).text == ""
    documents.close()


def test_errors_name_what_is_wrong(repository, tmp_path, monkeypatch):
    """No repository, no such folder, no git, a wrong limit: each is said."""
    (tmp_path / "plain").mkdir()
    with pytest.raises(AndreaError, match=r"cannot read the log of .*plain: .*not a git repository"):
        read(path=str(tmp_path / "plain"))
    with pytest.raises(AndreaError, match=r"cannot read the log of .*nowhere"):
        read(path=str(tmp_path / "nowhere"))
    with pytest.raises(AndreaError, match="limit is 0"):
        read(path=str(repository), limit=0)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AndreaError, match="needs git"):
        read(path=str(repository))
