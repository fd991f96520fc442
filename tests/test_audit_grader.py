"""`andrea audit grade`: what an endpoint is asked, what its answers mean, and that a failure midway loses no grade."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from andrea.audit import Audit, Drawn, Judged, Questions, make_sheet
from andrea.audit_grader import Endpoint, Refused, ask_grade, grade_sheet
from andrea.audit_grades import GradeFile, read_grades
from andrea.audit_sheet import write_sheets
from andrea.errors import AndreaError
from andrea.tokenfile import write_whole

AUDIT = Audit((Judged("runs/one", 1, "a"), Judged("runs/two", 2, "b")), Questions({"d": ("p0", "p1", "p2")}))
DRAWN = [Drawn(checkpoint, prompt, 0, f"text-{checkpoint}{prompt}") for checkpoint in (0, 1) for prompt in (0, 1, 2)]
SHEET = make_sheet(AUDIT, DRAWN)


def completion(text):
    """Return a body as chat completions have it."""
    return 200, {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]}


@pytest.fixture
def stub():
    """Yield a server on this machine whose `answer(number, body)` gives (status, JSON or bytes[, headers])."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.seen.append((self.path, dict(self.headers), body))
            status, value, *headers = server.answer(len(server.seen), body)
            content = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            for name, text in {"Content-Length": str(len(content)), **(headers[0] if headers else {})}.items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.seen, server.url = [], f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.answer = lambda number, body: completion("5")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def endpoint(stub):
    """Return a function that makes an endpoint whose waits are written down, not waited."""

    def make(**changes):
        waits = []
        made = Endpoint(**({"url": stub.url, "model": "judge", "sleep": waits.append, "timeout": 5.0} | changes))
        return made, waits

    return make


def test_what_is_asked(stub, endpoint):
    """Rubric, prompt and text, deterministic, with the key; nothing of where the text comes from."""
    made, _ = endpoint(key="k", options={"max_tokens": 50})
    assert ask_grade(made, "Be strict.", "The seed", " grows") == (5.0, "")
    (path, headers, body) = stub.seen[0]
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer k"
    assert {name: value for name, value in body.items() if name != "messages"} == {
        "model": "judge",
        "temperature": 0,
        "max_tokens": 50,
    }
    system, user = body["messages"]
    assert "Be strict." in system["content"]
    assert user == {
        "role": "user",
        "content": "<prompt>\nThe seed\n</prompt>\n<text>\n grows\n</text>",
    }
    made, _ = endpoint(url=stub.url + "/chat/completions/", options={"temperature": None})
    ask_grade(made, "r", "p", "t")
    assert stub.seen[1][0] == "/v1/chat/completions"
    assert "temperature" not in stub.seen[1][2]
    assert "Authorization" not in stub.seen[1][1]


@pytest.mark.parametrize(
    ("reply", "grade", "note"),
    [
        ("7", 7.0, ""),
        ("7.5\nReads well.", 7.5, "Reads well."),
        ("**8**/10\n\nGood.", 8.0, "\nGood."),
        ("Grade: 3 / 10", 3.0, ""),
        ("Score = 2,5 out of 10.", 2.5, ""),
        ("<think>Is it 9?\nNo.</think>\n\n4\nWhy", 4.0, "Why"),
        ("10/10", 10.0, ""),
    ],
)
def test_grades_that_are_understood(stub, endpoint, reply, grade, note):
    """A number on the first line, with what models put around it."""
    stub.answer = lambda number, body: completion(reply)
    assert ask_grade(endpoint()[0], "r", "p", "t") == (grade, note)
    assert len(stub.seen) == 1


@pytest.mark.parametrize("reply", ["", "I would say 7", "11", "-3", "seven", "7 and 8", "1e1", "100/10"])
def test_what_is_no_grade_is_asked_again(stub, endpoint, reply):
    """With the reply and a plainer request in the conversation; the third is the last."""
    stub.answer = lambda number, body: completion(reply if number < 3 else "6")
    assert ask_grade(endpoint()[0], "r", "p", "t") == (6.0, "")
    assert [message["role"] for message in stub.seen[2][2]["messages"][2:]] == ["assistant", "user"] * 2
    stub.answer = lambda number, body: completion(reply)
    assert ask_grade(endpoint()[0], "r", "p", "t") == (None, "")
    assert len(stub.seen) == 6


@pytest.mark.parametrize(
    ("bad", "wait"),
    [
        ((500, b"out of order"), 1.0),
        ((429, {"error": "slow down"}, {"Retry-After": "7"}), 7.0),
        ((503, b"", {"Retry-After": "9999"}), 60.0),
        ((200, b"<html>"), 1.0),
        ((200, {"choices": []}), 1.0),
        ((200, {"choices": [{"message": {"content": None}}]}), 1.0),
        ((200, [3]), 1.0),
    ],
)
def test_a_busy_endpoint_is_asked_again_after_a_while(stub, endpoint, bad, wait):
    """As long as it says, but no longer than a minute; five times in all."""
    stub.answer = lambda number, body: completion("6") if number == 2 else bad
    made, waits = endpoint()
    assert ask_grade(made, "r", "p", "t") == (6.0, "")
    assert waits == [wait]
    with pytest.raises(Refused, match="5 times"):
        ask_grade(made, "r", "p", "t")
    assert len(stub.seen) == 2 + 5
    assert len(waits) == 1 + 4


@pytest.mark.parametrize(("status", "words"), [(401, "no such key"), (404, "no model"), (400, "bad")])
def test_a_refusal_is_taken_at_its_word(stub, endpoint, status, words):
    """Asked once; what the endpoint says is shown."""
    stub.answer = lambda number, body: (status, {"error": {"message": words}})
    with pytest.raises(Refused, match=rf"answers {status}: .*{words}"):
        ask_grade(endpoint()[0], "r", "p", "t")
    assert len(stub.seen) == 1


def test_the_key_follows_no_redirect(stub, endpoint):
    """What the user named is what is asked."""
    stub.answer = lambda number, body: (302, b"", {"Location": stub.url + "/elsewhere"})
    with pytest.raises(Refused, match="answers 302"):
        ask_grade(endpoint(key="k")[0], "r", "p", "t")
    assert [path for path, _, _ in stub.seen] == ["/v1/chat/completions"]


def test_a_closed_port_and_no_url(endpoint):
    """Said plainly, the key never."""
    made, waits = endpoint(url="http://127.0.0.1:1/v1", key="secret")
    with pytest.raises(Refused, match=r"gives no answer: .*refused") as caught:
        ask_grade(made, "r", "p", "t")
    assert "secret" not in f"{caught.value}{made!r}"
    assert waits == [1.0, 2.0, 4.0, 8.0]
    for url in ("localhost:8000", "file:///etc/passwd", "", "http://"):
        with pytest.raises(AndreaError, match="no URL"):
            endpoint(url=url)


def test_a_failure_midway_loses_no_grade(stub, endpoint, tmp_path):
    """Three grades are kept; the next call asks for the other three alone, in the order of the sheet."""
    path = tmp_path / "judge.csv"

    def grade_of(number, body):
        return completion(f"{number}\nnumber {number}")

    stub.answer = lambda number, body: grade_of(number, body) if number <= 3 else (403, b"quota")
    told = []
    with GradeFile(path, SHEET, "judge") as file, pytest.raises(AndreaError, match="answers 403: quota") as caught:
        grade_sheet(SHEET, (), endpoint()[0], file, lambda *what: told.append(what))
    assert "3 of 6 texts are graded and kept; the same command goes on" in caught.value.hint
    assert told[-1] == ("grading with judge", 3, 6)
    kept = path.read_bytes()
    assert [(one.item, one.grade, one.note) for one in read_grades(path, SHEET)] == [
        (n, float(n), f"number {n}") for n in (1, 2, 3)
    ]

    stub.answer = lambda number, body: completion(str(number))
    with GradeFile(path, SHEET, "judge") as file:
        assert grade_sheet(SHEET, {1, 2, 3}, endpoint()[0], file, lambda *what: None) == []
    assert path.read_bytes().startswith(kept)
    assert {one.item: one.grade for one in read_grades(path, SHEET)} == {1: 1, 2: 2, 3: 3, 4: 5, 5: 6, 6: 7}
    asked = [body["messages"][1]["content"] for _, _, body in stub.seen if len(body["messages"]) == 2]
    texts = [item.text for item in SHEET.items]
    assert [next(text for text in texts if text in content) for content in asked] == [*texts[:4], *texts[3:]]


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(current_folder):
    """Return the name of a folder with an audit."""
    (current_folder / "a").mkdir()
    write_whole(current_folder / "a" / "audit.json", AUDIT.to_json().encode())
    lines = (
        json.dumps({"checkpoint": d.checkpoint, "prompt": d.prompt, "draw": d.draw, "text": d.text}) for d in DRAWN
    )
    (current_folder / "a" / "samples.jsonl").write_text("".join(line + "\n" for line in lines))
    write_sheets(current_folder / "a", SHEET)
    return "a"


def test_graded_by_command_and_reported(andrea, folder, stub, current_folder, monkeypatch):
    """The key comes from the environment; a text without a grade ends with exit code 1, and is asked for again."""
    monkeypatch.setenv("MY_KEY", "k")
    known = {item.text: 3 + 4 * item.checkpoint for item in SHEET.items}

    def answer(number, body):
        content = body["messages"][1]["content"]
        text = next(text for text in known if text in content)
        return completion("no idea" if text == "text-12" and number < 9 else str(known[text]))

    stub.answer = answer
    command = ["audit", "grade", folder, "--url", stub.url, "--model", "org/judge", "--name", "The Judge"]
    command += ["--key-variable", "MY_KEY", "--option", "max_tokens=9", "--option", "user=x"]
    done = andrea(*command)
    assert done.code == 1, done
    number = next(n for n, item in enumerate(SHEET.items, start=1) if item.text == "text-12")
    assert f"The Judge gave no grade to {number}; the same command asks again" in done.err
    assert stub.seen[0][1]["Authorization"] == "Bearer k"
    assert (stub.seen[0][2]["max_tokens"], stub.seen[0][2]["user"]) == (9, "x")
    again = andrea(*command)
    assert again.code == 0, again
    assert "6 of 6 texts are graded" in again.err
    assert len(stub.seen) == 5 + 3 + 1
    assert not (current_folder / "a" / "grades" / "lock").exists()
    report = json.loads(andrea("audit", "report", folder, "--json").out)
    means = {row["checkpoint"]: row["mean"] for row in report["rows"] if row["domain"] == "all"}
    assert means == {"runs/one step 1": 3.0, "runs/two step 2": 7.0}
    assert report["graders"] == {"The Judge": [6, 5.0]}


def test_no_key_is_sent_unless_its_variable_is_named(andrea, folder, stub, monkeypatch):
    """Whatever the environment holds; a variable that is named and not set is an error, before anything is asked."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    command = ["audit", "grade", folder, "--url", stub.url, "--model", "m"]
    monkeypatch.setenv("EMPTY", " ")
    for name in ("EMPTY", "ANDREA_NO_SUCH_KEY"):
        done = andrea(*command, "--key-variable", name)
        assert (done.code, f"--key-variable names {name}, which is not set" in done.err) == (2, True)
    assert stub.seen == []
    assert andrea(*command).code == 0
    assert len(stub.seen) == 6
    assert not any("Authorization" in headers for _, headers, _ in stub.seen)
    assert "secret" not in str(stub.seen)


def test_an_endpoint_that_fails_is_the_users_to_mend(andrea, folder, stub):
    """Exit code 2 with what it says; a wrong option names the right form."""
    stub.answer = lambda number, body: (401, {"error": "bad key"})
    done = andrea("audit", "grade", folder, "--url", stub.url, "--model", "m")
    assert done.code == 2
    assert "answers 401" in done.err
    assert "0 of 6 texts are graded and kept" in done.err
    done = andrea("audit", "grade", folder, "--url", stub.url, "--model", "m", "--option", "x")
    assert (done.code, "--option 'x' is not KEY=VALUE" in done.err) == (2, True)
