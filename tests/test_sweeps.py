"""Sweeps: a program cancels every task of its loop but its own, as asyncio.run does at its end."""

import asyncio
import contextlib
import threading
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dwell
from dwell.clock import SimulatedClock
from dwell.store.embedded.store import EmbeddedStore
from dwell.tasks import Standing, whole
from dwell.timer import Timer
from dwell.worker import Worker
from tests.http.served import served
from tests.waiting import PATIENCE_S, until, until_async


def sweep(*spared):
    """Cancel all tasks but this one and some others."""
    for task in asyncio.all_tasks() - {asyncio.current_task(), *spared}:
        task.cancel()


async def turns(count):
    for _ in range(count):
        await asyncio.sleep(0)


def queue_of(kind, folder):
    return dwell.open(str(folder / "queue") if kind == "embedded" else "memory:")


async def use(queue, call):
    """One call of a verb, in a task of its own."""
    verb, id_ = call
    if verb == "put":
        await queue.put("t", "x", id=id_)
    elif verb == "put_many":
        await queue.put_many("t", ["x"] * 3, ids=[f"{id_}{n}" for n in range(3)])
    elif verb == "cancel":
        await queue.cancel("t", id_)
    else:
        batch = await queue.take("t", 2, wait="20ms" if verb == "wait" else 0)
        await queue.ack(batch.receipts)


CALLS = st.tuples(
    st.sampled_from(["put", "put_many", "cancel", "take", "wait"]), st.sampled_from("abc")
)


@pytest.mark.campaign
@pytest.mark.parametrize("kind", ["embedded", "memory"])
@given(calls=st.lists(CALLS, min_size=1, max_size=6), moment=st.integers(0, 12), later=CALLS)
@settings(max_examples=60, deadline=None)
async def test_what_is_asked_after_a_sweep_is_answered(
    tmp_path_factory, kind, calls, moment, later
):
    folder = tmp_path_factory.mktemp("sweep")
    answered = set()
    async with queue_of(kind, folder) as queue:

        async def put(call):
            await use(queue, call)
            if call[0] == "put":
                answered.add(call[1])

        tasks = [asyncio.create_task(put(call)) for call in calls]
        await turns(moment)
        sweep()
        await use(queue, later)
        await asyncio.wait(tasks)
        await queue.put("t", "x", id="last")
        while True:
            # What was leased to a call that was cut short is ready again, or acked.
            batch = await queue.take("t", 100, wait="30ms")
            if not len(batch):
                break
            await queue.ack(batch.receipts)
        stats = await queue.stats()
        # What a call was handed before it was cut short is its own until the lease ends.
        takes = sum(verb in ("take", "wait") for verb, _ in calls)
        assert stats.topics["t"].leased <= 2 * takes
        assert stats.totals["put"] >= len(answered) + 1


@pytest.mark.parametrize("moment", range(6))
@pytest.mark.timeout(30)
async def test_a_group_that_was_cancelled_takes_no_more_calls(moment):
    async with dwell.open("memory:") as queue:
        first = asyncio.create_task(queue.put("t", "x", id="a"))
        await turns(moment)
        sweep()
        await queue.put("t", "x", id="b")
        await asyncio.wait([first])
        assert await queue.get("t", "b") is not None


@pytest.mark.parametrize("verb", ["put", "take"])
@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.timeout(30)
async def test_who_waits_for_a_batch_that_others_cancel_is_told(verb, is_cut):
    async with dwell.open("memory:") as queue:
        began, gate = asyncio.Event(), asyncio.Event()
        plain = getattr(queue.store, verb)

        async def slow(*args, **kwargs):
            began.set()
            await gate.wait()
            return await plain(*args, **kwargs)

        setattr(queue.store, verb, slow)
        call = queue.put("t", "x") if verb == "put" else queue.take("t", 1)
        task = asyncio.create_task(call)
        await began.wait()
        # Who waits for it is not cancelled itself.
        if is_cut:
            me = asyncio.current_task()
            asyncio.get_running_loop().call_soon(sweep, task, me)
        else:
            sweep(task)
            gate.set()
        await asyncio.wait([task])
        assert task.cancelled() is is_cut


@pytest.mark.timeout(30)
async def test_time_goes_on_for_those_that_stay():
    async with dwell.open("memory:") as queue:
        await turns(3)
        sweep()
        await queue.put("t", "x", id="a", delay="50ms")
        taken = await queue.take("t", 1, wait="1h")
        assert taken.ids == ["a"]


@pytest.mark.timeout(30)
async def test_a_wait_whose_clock_was_cut_off_ends():
    async with dwell.open("memory:") as queue:
        taker = asyncio.create_task(queue.take("t", 1, wait="1h"))
        await turns(5)
        sweep(taker)
        assert len(await taker) == 0


@pytest.mark.timeout(30)
async def test_files_of_a_thread_stay_open_through_a_sweep(tmp_path):
    """Events are written as a whole, and a close waits for the thread that writes."""

    async with dwell.open(str(tmp_path / "queue")) as queue:
        await queue.put_many("t", ["x"] * 1000)
        flush = asyncio.create_task(queue.events())
        for _ in range(5):
            await turns(1)
            sweep()
        with contextlib.suppress(asyncio.CancelledError):
            await flush
    async with dwell.open(str(tmp_path / "queue")) as queue:
        page = await queue.events(0, limit=5000)
        positions = page.events.positions.tolist()
        assert positions == list(range(1000))


@pytest.mark.parametrize("moment", range(16))
@pytest.mark.parametrize("function_is_plain", [True, False])
async def test_a_sweep_at_any_moment_loses_no_call_of_a_timer(moment, function_is_plain):
    clock, ran = SimulatedClock(), []

    async def note():
        ran.append(1)

    async def have_run(times):
        clock.advance(1_000)
        await asyncio.sleep(0.01)
        return len(ran) >= times

    async with Timer(clock=clock) as timer:
        call = (lambda: ran.append(1)) if function_is_plain else note
        timer.after("1s", call)
        await turns(moment)
        sweep()
        await until_async(partial(have_run, 1))
        timer.every("1s", call)
        await asyncio.sleep(0.01)
        clock.advance(1_000)
        await turns(moment)
        sweep()
        # A run whose own task was cancelled is over, and the next one comes.
        await until_async(partial(have_run, 3))


@pytest.mark.parametrize("times", [1, 3, 30])
@pytest.mark.parametrize("moment", [0, 1, 2, 5])
@pytest.mark.parametrize("is_all", [False, True])
@pytest.mark.timeout(30)
async def test_a_close_that_is_cancelled_closes(tmp_path, times, moment, is_all):
    folder = str(tmp_path / "queue")

    queue = await dwell.open(folder).__aenter__()
    await queue.put("t", "x", id="a")
    closing = asyncio.create_task(queue.close())
    await turns(moment)
    for _ in range(times):
        sweep() if is_all else closing.cancel()
        await turns(1)
    await asyncio.wait([closing])
    await queue.close()
    async with dwell.open(folder) as again:
        assert await again.get("t", "a") is not None


@pytest.mark.parametrize(("sweeps", "gap"), [(1, 1), (2, 2), (3, 1), (5, 2), (20, 2), (40, 1)])
@pytest.mark.timeout(30)
async def test_a_worker_that_is_swept_gives_back_and_closes(tmp_path, sweeps, gap):
    folder = str(tmp_path / "queue")

    async with dwell.open(folder) as queue:
        await queue.put_many("t", ["x"] * 4, lease="1h")
    worker, begun = Worker(folder), []

    @worker.on("t", concurrency=2)
    async def handle(message):
        begun.append(message)
        await asyncio.sleep(3600)

    serving = asyncio.create_task(worker.serve())
    await until_async(lambda: len(begun) >= 2)
    for _ in range(sweeps):
        sweep()
        await turns(gap)
    await asyncio.wait([serving])
    async with dwell.open(folder) as queue:
        stats = await queue.stats()
        assert (stats.topics["t"].ready, stats.topics["t"].leased) == (4, 0)
        assert {message.attempt for message in await queue.take("t", 4)} == {1}


@pytest.mark.parametrize("verb", ["take", "take_ids", "take_where"])
@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize("moment", [1, 2, 4, 8, 16, 40])
@pytest.mark.timeout(30)
async def test_a_take_that_is_cancelled_again_and_again_gives_back(
    tmp_path, verb, is_remote, moment
):
    async def cut(queue):
        calls = {
            "take": lambda: queue.take("t", 2),
            "take_ids": lambda: queue.take_ids("t", ["a", "b"]),
            "take_where": lambda: queue.take_where("t", "x == `1`", 2),
        }
        task = asyncio.create_task(calls[verb]())
        await turns(moment)
        for _ in range(30):
            task.cancel()
            await turns(1)
        await asyncio.wait([task])
        if task.cancelled():
            while (await queue.stats()).topics["t"].leased:
                await asyncio.sleep(0.01)
        else:
            await queue.release(task.result().receipts, counted=False)

    store = EmbeddedStore(tmp_path / "queue")
    async with served(store) as service:
        here = contextlib.nullcontext(service.queue)
        async with dwell.open(service.url) if is_remote else here as queue:
            await queue.put_many("t", ['{"x": 1}'] * 2, ids=["a", "b"], lease="1h")
            for _ in range(20 if is_remote else 3):
                await cut(queue)


def plan_sweeps(timer, *spared):
    """Plan a function that cancels all tasks, and others; return what tells that these all ran."""
    ran = []

    async def note(word):
        ran.append(word)

    async def cancel_all():
        sweep(*spared)

    timer.after("5ms", cancel_all)
    timer.after("5ms", note, "beside")
    timer.every("20ms", note, "again")
    timer.after("300ms", note, "later")
    return lambda: ran.count("again") >= 5 and "later" in ran


def test_a_function_that_cancels_all_ends_no_timer():
    with Timer() as timer:
        until(plan_sweeps(timer))


async def test_a_function_that_cancels_all_ends_no_timer_of_the_same_loop():
    async with Timer() as timer:
        await until_async(plan_sweeps(timer, asyncio.current_task()))


def test_a_function_that_stops_the_loop_ends_no_timer():
    ran = []

    async def stop():
        asyncio.get_running_loop().stop()

    with Timer() as timer:
        timer.after("1ms", stop)
        timer.after("30ms", ran.append, "later")
        until(lambda: ran)


@pytest.mark.timeout(30)
async def test_a_run_that_was_cancelled_before_it_began_leaves_the_next_one():
    ran, cut = [], []

    async def again():
        ran.append(1)

    async with Timer() as timer:
        call = timer.every("10ms", again)
        while not ran:
            before = asyncio.all_tasks()
            await asyncio.sleep(0)
            for task in asyncio.all_tasks() - before:
                if len(cut) < 3 and "Timer._run" in repr(task):
                    task.cancel()
                    cut.append(task)
        assert len(cut) == 3
        assert call.cancel()


@pytest.mark.timeout(30)
async def test_whole_work_ends_and_standing_work_goes_on():
    done, begun = [], []

    async def work():
        await turns(3)
        done.append(1)

    async def stand():
        begun.append(1)
        await asyncio.Event().wait()

    standing = Standing(stand)
    await standing.stop()
    standing.start()
    task = whole(work())
    await turns(1)
    sweep()
    await task
    await until_async(lambda: len(begun) >= 2)
    await standing.stop()
    await asyncio.sleep(0.15)
    assert (done, len(begun)) == ([1], 2)


@pytest.mark.parametrize("lost", [1, 3])
def test_a_program_ends_though_standing_work_loses_its_cancellation(lost):
    met = []

    async def stand():
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                met.append(1)
                if len(met) > lost:
                    raise

    async def main():
        Standing(stand).start()
        await turns(1)

    program = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    program.start()
    program.join(PATIENCE_S)
    assert not program.is_alive()
    assert len(met) == lost + 1


@pytest.mark.timeout(30)
async def test_a_program_that_forgets_to_close_ends_in_silence(caplog):
    queue = await dwell.open("memory:").__aenter__()
    await queue.put("t", "x", id="a", delay="1h")
    assert caplog.text == ""
