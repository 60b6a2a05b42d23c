"""Each command is refused to exactly whom it should be, which is what the docs show."""

import re
from pathlib import Path

import pytest

from dwell.server.beanstalk.commands import Verb
from dwell.server.beanstalk.rights import RIGHTS
from dwell.server.tokens import ANY, Right, Tokens
from tests.beanstalk.served import Line, Served

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "beanstalk.md"

#: A command of each verb, about the job 1 or the tube t, and what is said to who may not give it.
UNKNOWN, NONE = b"UNKNOWN_COMMAND", b"NOT_FOUND"
COMMANDS = {
    Verb.PUT: (b"put 0 0 9 1\r\nx", UNKNOWN),
    Verb.USE: (b"use t", UNKNOWN),
    Verb.WATCH: (b"watch other", UNKNOWN),
    Verb.RESERVE_WITH_TIMEOUT: (b"reserve-with-timeout 0", UNKNOWN),
    Verb.RESERVE: (b"reserve", UNKNOWN),
    Verb.RESERVE_JOB: (b"reserve-job %d", NONE),
    Verb.DELETE: (b"delete %d", NONE),
    Verb.PEEK: (b"peek %d", NONE),
    Verb.PEEK_READY: (b"peek-ready", UNKNOWN),
    Verb.PEEK_DELAYED: (b"peek-delayed", UNKNOWN),
    Verb.PEEK_BURIED: (b"peek-buried", UNKNOWN),
    Verb.KICK: (b"kick 1", UNKNOWN),
    Verb.KICK_JOB: (b"kick-job %d", NONE),
    Verb.STATS: (b"stats", UNKNOWN),
    Verb.STATS_JOB: (b"stats-job %d", NONE),
    Verb.STATS_TUBE: (b"stats-tube t", NONE),
    Verb.LIST_TUBES: (b"list-tubes", UNKNOWN),
    Verb.PAUSE_TUBE: (b"pause-tube t 0", NONE),
}


def test_each_command_that_concerns_jobs_has_rights():
    own = {Verb.RELEASE, Verb.BURY, Verb.TOUCH, Verb.IGNORE, Verb.LIST_TUBE_USED}
    assert set(Verb) == RIGHTS.keys() | own | {Verb.LIST_TUBES_WATCHED, Verb.REFUSED, Verb.QUIT}
    assert RIGHTS.keys() == COMMANDS.keys()


@pytest.mark.parametrize("right", [*ANY, Right.METRICS])
def test_one_right_alone_opens_what_the_table_says(tmp_path, right):
    path = tmp_path / "tokens"
    given = "true" if right is Right.METRICS else '[""]'
    path.write_text(f"[anonymous]\n{right} = {given}\n")
    with Served(tokens=Tokens.load(path)) as served:
        for verb, (command, refusal) in COMMANDS.items():
            job = served.call(served.queue.put("t", b"x"))
            if verb is Verb.KICK_JOB:
                held = served.call(served.queue.take("t"))
                served.call(served.queue.bury(held))
                job = held[0]
            if verb is Verb.RESERVE:
                served.call(served.queue.put("default", b"x"))
            with Line(served.number) as line:
                if verb is not Verb.USE and right is not Right.METRICS:
                    assert line.ask(b"use t\r\n") == b"USING t\r\n"
                command = command % job.number if b"%d" in command else command
                line.send(command + b"\r\n")
                told = line.read()
                is_refused = told.startswith(refusal)
                if verb in (Verb.PEEK_DELAYED, Verb.PEEK_BURIED) and not is_refused:
                    assert told.startswith(NONE)
                assert is_refused == (right not in RIGHTS[verb]), (verb, told)
            served.call(served.queue.clear("t"))


def test_the_page_says_the_same():
    commands = PAGE.read_text().partition("## Commands")[2].partition("## ")[0]
    rows = re.findall(r"^\| (`.*?) \| .* \| ?(.*?) ?\|$", commands, re.MULTILINE)
    said = {
        word.partition(" ")[0]: right
        for words, right in rows
        for word in re.findall("`(.*?)`", words)
    }
    for verb, rights in RIGHTS.items():
        word = verb.name.lower().replace("_", "-")
        words = "any" if rights == ANY else " or ".join(rights)
        assert said[word].startswith(words), word
        assert not any(f" or {other}" in said[word] for other in Right if other not in rights)
