"""Tasks of Django, enqueued and run by processes of a real project."""

import socket
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

import dwell
from dwell.django.opened import opened
from dwell.errors import StoreError
from dwell.server.tokens import hash_of
from tests.django.sites import PYTHONS
from tests.spark.conftest import ServerProcess
from tests.waiting import until

#: With each of Django's versions at once; all others have the second in the campaigns.
BOTH = pytest.mark.parametrize("python", list(PYTHONS), indirect=True)

_SHOW = """
def show(id):
    found = backend.get_result(id)
    print(found.status, found.attempts, [e.exception_class.__name__ for e in found.errors])
    return found
"""


@BOTH
def test_a_task_is_run_and_its_result_is_kept(site):
    id_ = site.run("print(tasks.add.enqueue(1, y=2).id)")
    assert id_.startswith("default:")
    site.burst()
    told = site.run(
        _SHOW
        + f"""
found = show({id_!r})
print(found.return_value, found.args, found.kwargs, found.is_finished, found.task == tasks.add)
assert found.enqueued_at <= found.started_at <= found.finished_at
assert found.last_attempted_at == found.started_at
"""
    )
    assert told.splitlines() == ["SUCCESSFUL 1 []", "3 [1] {'y': 2} True True"]


def test_a_result_is_refreshed(site):
    code = """
result = tasks.add.enqueue(1, 2)
print(result.status, result.is_finished, result.attempts)
result.refresh()
print(result.status)
import asyncio
async def run():
    result = await tasks.aadd.aenqueue(20, 22)
    print((await tasks.aadd.aget_result(result.id)).status)
    await result.arefresh()
    return result.id
print(asyncio.run(run()))
"""
    *told, id_ = site.run(code).splitlines()
    assert told == ["READY False 0", "READY", "READY"]
    site.burst()
    assert site.run(f"print(backend.get_result({id_!r}).return_value)") == "42"


@BOTH
def test_a_task_that_raises_has_failed_with_its_error(site):
    id_ = site.run("print(tasks.fails.enqueue('no stock').id)")
    site.burst()
    told = site.run(
        _SHOW
        + f"""
found = show({id_!r})
print("no stock" in found.errors[0].traceback, ":" in found.worker_ids[0])
assert found.enqueued_at <= found.started_at <= found.finished_at
try:
    found.return_value
except ValueError as error:
    print(error)
"""
    )
    assert told.splitlines() == ["FAILED 1 ['ValueError']", "True True", "Task failed"]
    assert site.notes() == [["fails", "no", "stock"]]


def test_a_task_that_exits_has_failed_and_the_worker_goes_on(site):
    ids = site.run("print(tasks.exits.enqueue().id, tasks.add.enqueue(1, 2).id)").split()
    site.burst()
    told = site.run(_SHOW + f"for id in {ids!r}: show(id)").splitlines()
    assert told == ["FAILED 1 ['SystemExit']", "SUCCESSFUL 1 []"]


def test_a_task_that_takes_too_long_has_failed(site_at, tmp_path):
    site = site_at(f"{tmp_path}/store", timeout="300ms")
    id_ = site.run("print(tasks.hangs.enqueue().id)")
    site.burst()
    assert site.run(_SHOW + f"show({id_!r})").startswith("FAILED 1 [")


def test_a_task_that_cannot_be_interrupted_is_not_run_again(site_at, server_url):
    prefix = f"{uuid.uuid4().hex}."
    site = site_at(server_url, prefix=prefix, timeout="100ms", retry="10ms")
    id_ = site.run("print(tasks.slow.enqueue('long', 20).id)")
    site.start()
    with dwell.open(server_url) as queue:
        until(lambda: queue.get(f"{prefix}default", id_).state is dwell.State.DEAD)
    assert site.run(_SHOW + f"show({id_!r})").endswith("['TimeoutError']")
    assert [words for words in site.notes() if words[0] == "begins"] == [["begins", "long"]]


def test_attempts_that_take_too_long_count_without_lost_workers(site_at, server_url):
    prefix = f"{uuid.uuid4().hex}."
    site = site_at(server_url, prefix=prefix, attempts=2, timeout="100ms", retry="10ms")
    id_ = site.run("print(tasks.slow.enqueue('long', 20).id)")
    with dwell.open(server_url) as queue:
        for attempt in (1, 2, 3):
            (message,) = queue.take(f"{prefix}default", wait="10s", lease="10ms")
            assert message.attempt == attempt
        site.start()
        until(lambda: queue.get(f"{prefix}default", id_).state is dwell.State.DEAD)
    assert site.run(_SHOW + f"show({id_!r})").endswith("['TimeoutError']")
    assert [words for words in site.notes() if words[0] == "begins"] == [["begins", "long"]] * 2


def test_a_value_that_is_no_json_is_a_failure(site):
    id_ = site.run("print(tasks.not_json.enqueue().id)")
    site.burst()
    assert site.run(_SHOW + f"show({id_!r})") == "FAILED 1 ['TypeError']"


def test_with_attempts_a_task_is_run_again(site_at, tmp_path):
    site = site_at(f"{tmp_path}/store", attempts=3, retry="50ms")
    worker = site.start()
    code = "print(tasks.attempts.enqueue(2).id); print(tasks.fails.enqueue('x').id)"
    # A worker has the folder, so the tasks are enqueued before it runs.
    site.kill(worker)
    second, never = site.run(code).splitlines()
    worker = site.start()
    site.until(lambda notes: len(notes) == 3)
    worker.terminate()
    assert worker.wait(60) == 0
    told = site.run(_SHOW + f"print(show({second!r}).return_value); show({never!r})")
    assert told.splitlines() == ["SUCCESSFUL 2 []", "2", "FAILED 3 ['ValueError']"]


@BOTH
def test_run_after_is_the_due_of_the_message(site, tmp_path):
    code = """
from datetime import timedelta
from django.utils import timezone
at = timezone.now() + timedelta(hours=1)
result = tasks.add.using(run_after=at).enqueue(1, 2)
print(result.id, int(at.timestamp() * 1000))
print(backend.get_result(result.id).task.run_after >= at)
"""
    first, is_later = site.run(code).splitlines()
    id_, at_ms = first.split()
    site.burst()
    assert site.run(_SHOW + f"show({id_!r})") == "READY 0 []"
    assert is_later == "True"
    with dwell.open(tmp_path / "store") as queue:
        message = queue.get("django.default", id_)
    assert int(at_ms) <= message.due_ms <= int(at_ms) + 1


def test_higher_priorities_are_run_first(site):
    code = """
for name, priority in (("low", -100), ("none", 0), ("high", 100), ("some", 7)):
    tasks.mail.using(priority=priority).enqueue(name)
tasks.mail.enqueue("five")
"""
    site.run(code)
    done = site.manage("dwell_worker", "--burst", "--concurrency", "1", "--queue-name", "mail")
    assert done.returncode == 0, done.stderr
    assert [words[1] for words in site.notes()] == ["high", "some", "five", "none", "low"]


def test_a_task_may_enqueue_others(site):
    """Also over a folder, which the worker has open already."""
    id_ = site.run("print(tasks.nested.enqueue(21).id)")
    site.burst()
    code = f"""
other = backend.get_result({id_!r}).return_value
print(backend.get_result(other).return_value)
"""
    assert site.run(code) == "42"


def test_a_program_enqueues_after_a_worker_in_it_has_ended(site_at, server_url):
    site = site_at(server_url, prefix=f"{uuid.uuid4().hex}.")
    code = """
from django.core.management import call_command
ids = []
for first in (1, 2):
    ids.append(tasks.add.enqueue(first, y=20).id)
    call_command("dwell_worker", burst=True)
print(*[backend.get_result(id).return_value for id in ids])
"""
    assert site.run(code) == "21 22"


@BOTH
def test_a_task_is_put_when_its_transaction_commits(site_at, tmp_path):
    site = site_at(f"{tmp_path}/store", on_commit=True)
    code = """
from django.db import transaction
with transaction.atomic():
    kept = tasks.add.enqueue(1, 2)
    print(backend.queue.get("django.default", kept.id))
print(backend.get_result(kept.id).status)
try:
    with transaction.atomic():
        lost = tasks.add.enqueue(3, 4)
        raise KeyError
except KeyError:
    pass
from dwell.django.tasks import TaskResultDoesNotExist
try:
    backend.get_result(lost.id)
except TaskResultDoesNotExist:
    print("not put")
"""
    assert site.run(code).splitlines() == ["None", "READY", "not put"]


def test_what_cannot_be_put_is_refused_before_the_transaction_commits(site_at, tmp_path):
    site = site_at(f"{tmp_path}/store", on_commit=True)
    code = """
import datetime
from django.db import transaction
from django.utils import timezone
far = timezone.now() + datetime.timedelta(days=50_000)
for call in (
    lambda: tasks.mail.enqueue("x" * (1 << 20)),
    lambda: tasks.mail.using(run_after=far).enqueue("x"),
):
    try:
        with transaction.atomic():
            call()
    except Exception as error:
        print(type(error).__name__)
"""
    assert site.run(code).splitlines() == ["InvalidBody", "InvalidTime"]


_THREE = """
from django.db import transaction
from dwell.django.tasks import TaskResultDoesNotExist, task_enqueued
told = []
def receive(task_result, **rest): told.append(task_result.id)
task_enqueued.connect(receive)
with transaction.atomic():
    put = [tasks.mail.enqueue("a"), tasks.mail.enqueue("b"), tasks.add.enqueue(1, 2)]
for result in put:
    try:
        print(backend.get_result(result.id).status, result.id in told)
    except TaskResultDoesNotExist:
        print("not put", result.id in told)
"""


@pytest.mark.parametrize("on_full", ["refuse", "drop"])
def test_a_queue_that_is_full_leaves_the_other_tasks_of_a_transaction(site_at, tmp_path, on_full):
    site = site_at(f"{tmp_path}/store", on_commit=True)
    with dwell.open(f"{tmp_path}/store") as queue:
        queue.configure("django.mail", max_pending=1, on_full=on_full)
    assert site.run(_THREE).splitlines() == ["READY True", "not put False", "READY True"]


def test_a_quota_leaves_the_other_tasks_of_a_transaction(site_at, tmp_path):
    """One topic is all that the token may have."""
    tokens = tmp_path / "tokens.toml"
    rights = "".join(f'{right} = ["django."]\n' for right in ("put", "take", "admin"))
    quota = "quota = {topics = 1}"
    tokens.write_text(f'[[token]]\nname = "a"\nsha256 = "{hash_of("secret")}"\n{rights}{quota}\n')
    tokens.chmod(0o600)
    server = ServerProcess(tmp_path, f"--token-file={tokens}")
    try:
        site = site_at(server.url, on_commit=True, store={"token": "secret"})
        site.run("tasks.add.enqueue(1, 2)")
        shown = ["not put False", "not put False", "READY True"]
        assert site.run(_THREE).splitlines() == shown
    finally:
        server.stop()


def test_a_result_that_the_server_refuses_is_a_failure_that_counts(site_at, tmp_path):
    """It was taken for a lost worker, and the task was run sixteen times."""
    server = ServerProcess(tmp_path, "--max-body-bytes=65536")
    try:
        site = site_at(server.url, attempts=2, retry="10ms")
        id_ = site.run("print(tasks.grows.enqueue(100_000).id)")
        with dwell.open(server.url) as queue:
            while str(queue.get("django.default", id_).state) != "dead":
                site.burst()
        assert site.run(_SHOW + f"show({id_!r})") == "FAILED 2 ['InvalidBody']"
        assert site.notes() == [["grows"], ["grows"]]
    finally:
        server.stop()


def test_a_store_that_is_away_holds_up_its_own_users_alone():
    """Those who wait for it hear of its failure at once, and not each after another try."""
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor() as threads:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        asked = [threads.submit(opened, url, {}) for _ in range(4)]
        assert opened("memory:", {}).stats().topics == {}
        assert not any(one.done() for one in asked)
        silent.close()
        errors = [one.exception() for one in asked]
    assert all(isinstance(error, StoreError) for error in errors)
    assert len(set(map(id, errors))) == 1


def test_attempts_are_those_that_raise(site_at, server_url):
    prefix = f"{uuid.uuid4().hex}."
    site = site_at(server_url, prefix=prefix, attempts=2, retry="10ms")
    id_ = site.run("print(tasks.fails.enqueue('x').id)")
    topic, lost = f"{prefix}default", 0
    with dwell.open(server_url) as queue:

        def lose():
            (message,) = queue.take(topic, wait="10s", lease="10ms")
            return message.attempt

        assert [lose(), lose()] == [1, 2]
        site.burst()
        # It has raised once, at attempt 3 or later, and waits for its retry.
        while str(queue.get(topic, id_).state) != "dead":
            lost += 1
            assert lost < 10
            site.burst()
    assert [words[0] for words in site.notes()] == ["fails", "fails"]
    assert site.run(_SHOW + f"show({id_!r})").endswith("['ValueError']")


def test_a_result_that_is_too_large_is_a_failure(site):
    id_ = site.run("print(tasks.grows.enqueue(1 << 20).id)")
    site.burst()
    site.burst()
    assert site.run(_SHOW + f"show({id_!r})") == "FAILED 1 ['ValueError']"
    assert site.notes() == [["grows"]]


def test_a_receiver_that_raises_is_no_failure_of_the_task(site):
    code = "from dwell.django.tasks import task_enqueued; tasks.connect_bad(task_enqueued)"
    id_ = site.run(f"{code}; print(tasks.mail.enqueue('bad receivers').id)")
    site.burst()
    site.burst()
    assert site.run(_SHOW + f"show({id_!r})") == "SUCCESSFUL 1 []"
    assert site.notes() == [["mail", "bad", "receivers"]]


def test_without_it_a_task_is_put_at_once(site):
    code = """
from django.db import transaction
with transaction.atomic():
    print(backend.get_result(tasks.add.enqueue(1, 2).id).status)
"""
    assert site.run(code) == "READY"


@pytest.mark.parametrize("id_", ["", "unknown", "default:unknown", "no such:one", "x" * 400 + ":1"])
def test_a_result_that_there_is_not_is_said_to_be(site, id_):
    code = f"""
from dwell.django.tasks import TaskResultDoesNotExist
try:
    backend.get_result({id_!r})
except TaskResultDoesNotExist:
    print("none")
"""
    assert site.run(code) == "none"


@BOTH
def test_signals_are_sent(site, tmp_path):
    site.run("tasks.add.enqueue(1, 2); tasks.fails.enqueue('x')")
    done = site.manage("dwell_worker", "--burst", "--concurrency", "1")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site0" / "notes.signals").read_text().splitlines() == [
        "task_enqueued DwellBackend add READY",
        "task_enqueued DwellBackend fails READY",
        "task_started DwellBackend add RUNNING",
        "task_finished DwellBackend add SUCCESSFUL",
        "task_started DwellBackend fails RUNNING",
        "task_finished DwellBackend fails FAILED",
    ]


@BOTH
def test_what_cannot_be_enqueued_is_refused(site):
    code = """
from dwell.django.tasks import InvalidTask
for call in (
    lambda: tasks.add.using(queue_name="other"),
    lambda: tasks.add.using(priority=101),
    lambda: tasks.add.enqueue(object(), 1),
):
    try:
        call()
    except (InvalidTask, TypeError) as error:
        print(type(error).__name__, error)
"""
    told = site.run(code).splitlines()
    assert len(told) == 3
    assert "other" in told[0]
    assert "priority" in told[1]
    assert told[2].startswith("TypeError")


@pytest.mark.parametrize(
    ("options", "said"),
    [({"urls": "x"}, "got urls, expected some of url"), ({"url": None}, "expected the URL of a")],
)
def test_wrong_options_are_told(site_at, options, said):
    site = site_at("memory:", **options)
    done = site.manage("dwell_worker", "--burst")
    assert done.returncode != 0
    assert said in done.stderr


def test_wrong_options_of_the_worker_are_told(site):
    for words, said in (
        (["--queue-name", "other"], "got other, expected default, mail"),
        (["--concurrency", "0"], "concurrency"),
    ):
        done = site.manage("dwell_worker", "--burst", *words)
        assert done.returncode == 1
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_a_task_whose_function_is_gone_is_dead(site, tmp_path):
    id_ = site.run("print(tasks.add.enqueue(1, 2).id)")
    with dwell.open(tmp_path / "store") as queue:
        body = queue.get("django.default", id_).json() | {"task": "shop.tasks.renamed"}
        queue.put("django.default", body, id=id_, on_conflict="replace")
        queue.put("django.default", b"not a task", id="default:strange")
    site.burst()
    with dwell.open(tmp_path / "store") as queue:
        for name in (id_, "default:strange"):
            assert str(queue.get("django.default", name).state) == "dead"


# --- workers that are killed -------------------------------------------------------------------


@pytest.mark.campaign
def test_tasks_of_a_killed_worker_are_run_again(site_at, server_url):
    prefix = f"{uuid.uuid4().hex}."
    site = site_at(server_url, lease="1s", prefix=prefix)
    names = [f"task-{number}" for number in range(12)]
    ids = site.run(f"for name in {names!r}: print(tasks.slow.enqueue(name, 0.3).id)").splitlines()
    for kills in range(3):
        worker = site.start()
        site.until(lambda notes, most=3 * kills: len(ended(notes)) > most)
        site.kill(worker)
    worker = site.start()
    site.until(lambda notes: len(ended(notes)) == len(names))
    # A task may have ended whose worker was killed before it told so: it is run again.
    with dwell.open(server_url) as queue:
        until(lambda: not pending(queue.stats().topics[f"{prefix}default"]))
    worker.terminate()
    assert worker.wait(60) == 0
    code = f"for id in {ids!r}: found = backend.get_result(id); print(found.status, found.attempts)"
    told = [line.split() for line in site.run(code).splitlines()]
    assert {status for status, _ in told} == {"SUCCESSFUL"}
    # Only what had begun when its worker was killed has begun again.
    begun = [words[1] for words in site.notes() if words[0] == "begins"]
    # A message may have been taken by a worker that was killed before it began.
    pairs = zip(told, names, strict=True)
    assert all(int(attempts) >= begun.count(name) for (_, attempts), name in pairs)
    assert len(begun) <= len(names) + 3 * 4


def pending(counts):
    return counts.delayed + counts.ready + counts.leased


def ended(notes):
    return {words[1] for words in notes if words[0] == "ends"}


def test_a_task_that_always_loses_its_worker_has_failed(site_at, server_url):
    prefix = f"{uuid.uuid4().hex}."
    site = site_at(server_url, prefix=prefix)
    id_ = site.run("print(tasks.add.enqueue(1, 2).id)")
    with dwell.open(server_url) as queue:
        while str(queue.get(f"{prefix}default", id_).state) != "dead":
            for message in queue.take(f"{prefix}default", wait="1s", lease="50ms"):
                assert message.attempt <= 16
    assert site.run(_SHOW + f"show({id_!r})") == "FAILED 16 ['WorkerLost']"


def test_a_running_task_says_so(site_at, server_url):
    site = site_at(server_url, prefix=f"{uuid.uuid4().hex}.")
    id_ = site.run("print(tasks.slow.enqueue('long', 60).id)")
    site.start()
    site.until(lambda notes: notes)
    assert site.run(_SHOW + f"show({id_!r})") == "RUNNING 1 []"
