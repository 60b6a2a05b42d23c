import os
import time

import pytest

from dwell.clock.clock import SimulatedClock
from dwell.errors import Forbidden, InvalidSettings, Unauthorized
from dwell.server.tokens import ANY, Entry, Grant, Right, Tokens, check_entry, hash_of

FILE = f"""
[anonymous]
take = ["public."]

[[token]]
name = "orders"
sha256 = "{hash_of("secret")}"
put = ["orders."]
take = ["orders.", "refunds."]

[[token]]
name = "root"
sha256 = "{hash_of("all")}"
put = [""]
take = [""]
admin = [""]
"""


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "tokens.toml"
    made.write_text(FILE)
    made.chmod(0o600)
    return made


def test_without_a_file_everybody_may_do_everything():
    tokens = Tokens()
    assert tokens.is_open
    assert tokens.names == []
    for right in Right:
        tokens.check(None, (right,), None)
        tokens.check("anything", (right,), ["t"])
    tokens.reload()


@pytest.mark.parametrize(
    ("token", "right", "topics"),
    [
        ("secret", Right.PUT, ["orders.new", "orders."]),
        ("secret", Right.TAKE, ["orders.new", "refunds.x"]),
        ("secret", Right.TAKE, []),
        ("all", Right.ADMIN, None),
        ("all", Right.PUT, ["any"]),
        (None, Right.TAKE, ["public.news"]),
    ],
)
def test_what_is_allowed(path, token, right, topics):
    Tokens.load(path).check(token, (right,), topics)


@pytest.mark.parametrize(
    ("token", "right", "topics", "error", "words"),
    [
        ("secret", Right.PUT, ["orders"], Forbidden, "token orders may not put to orders"),
        ("secret", Right.PUT, ["orders.a", "other"], Forbidden, "put to orders.a, other"),
        ("secret", Right.PUT, None, Forbidden, "put to all topics"),
        ("secret", Right.ADMIN, ["orders.a"], Forbidden, "administer orders.a"),
        ("secret", Right.TAKE, ["public.news"], Forbidden, "take from public.news"),
        ("secret", Right.PUT, list("abcde"), Forbidden, "put to a and 4 others"),
        ("Secret", Right.PUT, ["orders.a"], Unauthorized, "the token is unknown"),
        ("", Right.TAKE, ["public.news"], Unauthorized, "the token is unknown"),
        ("\ud800", Right.TAKE, ["public.news"], Unauthorized, "the token is unknown"),
        (None, Right.PUT, ["public.news"], Unauthorized, "a token is needed to put to"),
        (None, Right.TAKE, None, Unauthorized, "a token is needed to take from all topics"),
    ],
)
def test_what_is_refused(path, token, right, topics, error, words):
    with pytest.raises(error, match=words):
        Tokens.load(path).check(token, (right,), iter(topics) if topics is not None else None)


def test_what_a_caller_did_not_name_is_allowed_or_not_there(path):
    tokens = Tokens.load(path)
    assert tokens.allows("secret", (Right.PUT,), "orders.a")
    assert not tokens.allows("secret", (Right.PUT,), "other")
    assert not tokens.allows("unknown", (Right.PUT,), "orders.a")
    tokens.check("secret", (Right.PUT,), ())
    with pytest.raises(Forbidden, match="token orders may not administer any topic"):
        tokens.check("secret", (Right.ADMIN,), ())
    with pytest.raises(Unauthorized, match="a token is needed to put to any topic"):
        tokens.check(None, (Right.PUT,), ())
    Tokens().check(None, (Right.ADMIN,), ())


def test_who_has_no_token_and_asks_for_no_topic_yet_is_told_where_it_goes(path):
    """A client asks first of which store the server is, whatever it is about to do."""
    path.write_text("")
    with pytest.raises(Unauthorized) as caught:
        Tokens.load(path).check(None, ANY, ())
    assert str(caught.value).startswith("a token is needed: DWELL_TOKEN, ")


def test_no_error_tells_a_secret(path):
    with pytest.raises(Unauthorized) as caught:
        Tokens.load(path).check("hush-hush", (Right.PUT,), ["t"])
    assert "hush" not in str(caught.value)


def test_a_file_is_read_again_only_whole(path):
    tokens = Tokens.load(path)
    assert tokens.names == ["orders", "root"]
    path.write_text("[[token]]\n")
    with pytest.raises(InvalidSettings, match="missing required field `name`"):
        tokens.reload()
    tokens.check("secret", (Right.PUT,), ["orders.a"])
    path.write_text(FILE.replace(hash_of("secret"), hash_of("changed")))
    tokens.reload()
    tokens.check("changed", (Right.PUT,), ["orders.a"])
    with pytest.raises(Unauthorized):
        tokens.check("secret", (Right.PUT,), ["orders.a"])


@pytest.mark.parametrize("prefix", ["", "dwell:", "dwell:schedules", "dwelling.", "dx"])
def test_a_prefix_may_cover_all_or_none_of_the_own_topics(path, prefix):
    path.write_text(FILE.replace("refunds.", prefix))
    is_covered = prefix == "" or prefix.startswith("dwell:")
    grant = Tokens.load(path).grant("secret")
    assert grant.allows((Right.TAKE,), ["dwell:schedules"]) == is_covered


def test_an_empty_file_lets_nobody_in(path):
    path.write_text("")
    tokens = Tokens.load(path)
    assert not tokens.is_open
    with pytest.raises(Unauthorized):
        tokens.check(None, (Right.PUT,), ["t"])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (FILE.replace("refunds.", "re funds"), "token orders: got take 're funds', expected the"),
        (FILE.replace('"public."', '"pub/"'), "anonymous: got take 'pub/'"),
        (FILE.replace('"public."', '"d"'), "anonymous: got take 'd', which covers the queue's own"),
        (FILE.replace("refunds.", "dwell"), "token orders: got take 'dwell', which covers the"),
        (FILE.replace('"orders"', '""'), "got name '', expected 1-100"),
        (FILE.replace('"root"', '"orders"'), "two tokens have the name orders"),
        (FILE.replace(hash_of("all"), hash_of("secret")), "two tokens have the sha256"),
        (FILE.replace(hash_of("all"), "secret"), "token root: got sha256 'secret', expected 64"),
        (FILE.replace(hash_of("all"), hash_of("all").upper()), "expected 64 hexadecimal digits in"),
        (FILE.replace("admin =", "admim ="), "unknown field `admim`"),
        (FILE.replace('put = ["orders."]', 'put = "orders."'), "Expected `array`"),
        ("[tokens]", "unknown field `tokens`"),
        ("token = 1", "Expected `array`"),
        ("[[token", "Expected"),
        ("n = " + "9" * 5000, "digits"),
    ],
)
def test_files_that_are_refused(path, text, error):
    path.write_text(text)
    with pytest.raises(InvalidSettings, match=f"^token_file {path}: ") as caught:
        Tokens.load(path)
    assert error in str(caught.value)


@pytest.mark.parametrize("mode", [0o666, 0o660, 0o602])
def test_a_file_that_others_may_write_is_refused(path, mode):
    path.chmod(mode)
    with pytest.raises(InvalidSettings, match=f"others may write it .mode {mode:o}.*chmod go-w"):
        Tokens.load(path)


def test_a_file_that_others_may_read_is_fine(path):
    path.chmod(0o444)
    assert Tokens.load(path).names


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InvalidSettings, match=r"none\.toml: No such file"):
        Tokens.load(tmp_path / "none.toml")
    with pytest.raises(InvalidSettings, match="Is a directory"):
        Tokens.load(tmp_path)
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(InvalidSettings, match="utf-8"):
        Tokens.load(tmp_path / "bytes")


def test_rights_imply_no_other():
    grant = Grant(admin=("",))
    assert grant.allows((Right.ADMIN,), None)
    assert not grant.allows((Right.PUT,), ["t"])


def test_an_entry_knows_its_hash():
    entry = Entry(name="a", sha256=hash_of("x"), put=("a.",))
    check_entry(entry, "here")
    assert entry.hashes == (hash_of("x"),)


def test_a_check_is_cheap(path):
    many = "".join(
        f'[[token]]\nname = "n{n}"\nsha256 = "{hash_of(str(n))}"\nput = ["t"]\n'
        for n in range(2000)
    )
    path.write_text(many)
    tokens = Tokens.load(path)
    started = time.process_time()
    for _ in range(1000):
        tokens.check("1999", (Right.PUT,), ("t",))
    assert time.process_time() - started < 5
    assert os.path.getsize(path) > 100_000


# --- several secrets, and an end ----------------------------------------------------------------


def test_all_secrets_of_a_token_are_good(path):
    both = f'["{hash_of("secret")}", "{hash_of("newer")}"]'
    path.write_text(FILE.replace(f'"{hash_of("secret")}"', both))
    tokens = Tokens.load(path)
    for secret in ("secret", "newer"):
        assert tokens.check(secret, (Right.PUT,), ["orders.a"]) == "orders"
    path.write_text(FILE.replace(hash_of("secret"), hash_of("newer")))
    tokens.reload()
    tokens.check("newer", (Right.PUT,), ["orders.a"])
    with pytest.raises(Unauthorized, match="unknown"):
        tokens.check("secret", (Right.PUT,), ["orders.a"])


@pytest.mark.parametrize(
    ("hashes", "error"),
    [
        ("[]", "token orders: got 0 values of sha256, expected 1-10"),
        (str([hash_of(str(n)) for n in range(11)]), "got 11 values of sha256, expected 1-10"),
        (str([hash_of("all")]), "two tokens have the sha256"),
        (str([hash_of("a"), hash_of("a")]), "two tokens have the sha256"),
        (str([hash_of("a"), "b"]), "got sha256 'b', expected 64"),
        ("[1]", "Expected `str`, got `int`"),
    ],
)
def test_hashes_that_are_refused(path, hashes, error):
    path.write_text(FILE.replace(f'"{hash_of("secret")}"', hashes.replace("'", '"')))
    with pytest.raises(InvalidSettings, match=error):
        Tokens.load(path)


#: A moment, and the same as it may be written.
ENDS_MS = 1_798_761_600_000
ENDS = ['"2027-01-01"', "2027-01-01", "2027-01-01T00:00:00Z", '"2027-01-01T01:00:00+01:00"']


@pytest.mark.parametrize("said", ENDS)
def test_a_token_ends(path, caplog, said):
    path.write_text(FILE.replace('name = "orders"', f'name = "orders"\nexpires = {said}'))
    clock = SimulatedClock(ENDS_MS - 1)
    tokens = Tokens(path, clock)
    tokens.check("secret", (Right.PUT,), ["orders.a"])
    assert tokens.next_end_ms == 1
    assert not caplog.messages
    clock.advance(1)
    assert tokens.next_end_ms is None
    for _ in range(5):
        with pytest.raises(Unauthorized) as caught:
            tokens.check("secret", (Right.PUT,), ["orders.a"])
        # To the caller no more is said; in the log there is a line, and not one a request.
        assert str(caught.value) == "the token has ended"
    (line,) = caplog.messages
    assert line == "token orders is refused: it ended at 2027-01-01 00:00:00+00:00" or "+01" in line
    assert not tokens.allows("secret", (Right.PUT,), "orders.a")
    clock.advance(60_000)
    with pytest.raises(Unauthorized):
        tokens.grant("secret")
    assert len(caplog.messages) == 2
    tokens.check("all", (Right.PUT,), ["orders.a"])


@pytest.mark.parametrize(
    "said", ["2027-01-01T00:00:00", '"tomorrow"', "1", "true", '"2027-13-01"', "12:00:00", "[]"]
)
def test_ends_that_are_refused(path, said):
    path.write_text(FILE.replace('name = "orders"', f'name = "orders"\nexpires = {said}'))
    with pytest.raises(InvalidSettings):
        Tokens.load(path)


@pytest.mark.parametrize(
    "said",
    ["pending = -1", "requests_per_s = 0", "size = 1", 'topics = "1"', "streams = 1.5"],
)
def test_quotas_that_are_refused(path, said):
    path.write_text(FILE.replace('name = "orders"', f'name = "orders"\nquota = {{{said}}}'))
    with pytest.raises(InvalidSettings):
        Tokens.load(path)
