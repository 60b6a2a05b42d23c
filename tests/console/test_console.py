"""What the console shows and does, by clicking."""

import re

from playwright.async_api import expect

from dwell.calendar.epoch import from_ms
from dwell.server.http import filters
from tests.waiting import until_async


async def test_topics_are_shown_and_change_by_themselves(consoled):
    async with consoled() as console:
        await console.queue.put_many("orders", ["x"] * 1234, delay="1h")
        await console.open()
        row = console.page.get_by_role("row", name=re.compile("^orders "))
        await expect(row.get_by_role("cell").nth(1)).to_have_text("1,234")
        await console.queue.put_many("orders", ["x"] * 2)
        await console.queue.put("new", "x")
        await expect(row.get_by_role("cell").nth(2)).to_have_text("2")
        await console.queue.ack(await console.queue.take("orders", 1))
        await expect(row.get_by_role("cell").nth(2)).to_have_text("1")
        await expect(row.get_by_role("cell").nth(9)).to_have_text(re.compile("ms|s"))
        await expect(row.get_by_role("cell").nth(10)).to_have_text(re.compile("ago"))
        await expect(console.page.get_by_role("link", name="new", exact=True)).to_be_visible()
        await expect(console.page.locator("#live")).to_have_text("live")


async def test_a_thousand_topics_come_page_by_page(consoled):
    async with consoled() as console:
        for at in range(1000):
            await console.queue.put(f"t.{at:04}", "x", delay="1h")
        await console.open()
        rows = console.page.locator("tbody tr")
        await expect(rows).to_have_count(50)
        await console.page.get_by_role("link", name="Next").click()
        await expect(rows.first).to_contain_text("t.0050")
        await console.page.get_by_label("Name has").fill("t.099")
        await console.button("Look").click()
        await expect(rows).to_have_count(10)
        await console.queue.put("t.0995", "x", delay="1h")
        await console.button("Delayed").click()
        await expect(rows.first).to_contain_text("t.0995")


async def test_the_coming_load_leads_from_days_to_messages(consoled):
    async with consoled() as console:
        await console.queue.put_many("t", ["x"] * 7, delay="90m")
        await console.queue.put("u", "x", delay="200d")
        await console.open("#/load?unit=day&topic=t")
        page = console.page
        status = page.get_by_role("status").filter(has_text="fall due")
        await expect(status).to_contain_text("7 messages")
        await expect(page.get_by_role("img")).to_be_visible()
        await console.queue.put("t", "x", delay="91m")
        await expect(status).to_contain_text("8 messages")
        await page.get_by_label("Topic").fill("")
        await console.button("Show").click()
        await expect(status).to_contain_text("9 messages")
        await page.get_by_label("Topic").fill("t")
        await page.get_by_label("Chart").select_option("hour")
        await console.button("Show").click()
        await expect(page.locator("rect.hit")).to_have_count(168)
        # A bar is clicked for what is in it; the table says the same to who cannot.
        await page.locator("rect.hit").nth(1).or_(page.locator("rect.hit").nth(2)).first.click()
        await expect(page.locator("rect.hit")).to_have_count(120)
        await page.go_back()
        for _ in range(2):
            await expect(page.locator("rect.hit")).not_to_have_count(0)
            await page.get_by_text("As a table").click()
            await page.locator("tbody a").first.click()
        await console.heading("Messages of t")
        await expect(page.locator("tbody tr")).not_to_have_count(0)


async def test_messages_are_found_by_state_due_key_body_and_id(consoled):
    async with consoled() as console:
        page, put = console.page, console.queue.put
        await put("t", {"city": "Rome"}, id="rome", key="k1", delay="1h")
        await put("t", {"city": "Oslo"}, id="oslo", key="k2", delay="2h")
        await put("t", "ready", id="ready")
        await console.open("#/messages")
        await page.get_by_label("Topic").fill("t")
        await console.button("Look").click()
        rows = page.locator("tbody tr")
        await expect(rows).to_have_count(2)
        await page.get_by_label("Body").fill("city == 'Oslo'")
        await console.button("Look").click()
        await expect(rows).to_have_count(1)
        await expect(rows).to_contain_text("oslo")
        await page.get_by_label("Body").fill("")
        await page.get_by_label("Key").fill("k1")
        await console.button("Look").click()
        await expect(rows).to_contain_text("rome")
        await page.get_by_label("Key").fill("")
        await page.get_by_label("State").select_option("ready")
        await console.button("Look").click()
        await expect(rows).to_contain_text("ready")
        await page.get_by_label("Body").fill("city ==")
        await console.button("Look").click()
        await expect(page.get_by_role("alert")).to_contain_text("where")
        await console.open("#/messages?topic=t")
        await page.get_by_label("Id", exact=True).fill("oslo")
        await console.button("Look").click()
        await console.heading("Message oslo")
        await expect(page.get_by_label("Body")).to_have_text('{"city":"Oslo"}')


async def test_a_search_that_would_take_long_says_how_far_it_came(consoled, monkeypatch):
    monkeypatch.setattr(filters, "MOST_LOOKED_AT", 1000)
    async with consoled() as console:
        bodies = [{"n": at} for at in range(2500)]
        await console.queue.put_many("t", bodies, delay=[f"{3600 + at}s" for at in range(2500)])
        await console.open("#/messages?topic=t&where=n%20%3D%3D%20%602400%60")
        status = console.page.get_by_role("status").filter(has_text="message")
        await expect(status).to_have_text(re.compile("^0 messages so far; looked at all .*Z.$"))
        await console.button("Look further").click()
        await console.button("Look further").click()
        await expect(status).to_have_text("1 message: all that match.")


async def test_a_message_has_its_history_and_what_can_be_done(consoled):
    async with consoled() as console:
        page, queue = console.page, console.queue
        await queue.put("t", "x", id="one")
        await queue.release(await queue.take("t"), delay="1h")
        await console.open("#/message?topic=t&id=one")
        await expect(page.locator("tbody tr")).to_have_count(3)
        await expect(page.locator("tbody")).to_contain_text("release")
        await console.do(
            "Reschedule …", "1 message", "Reschedule", "one: moved", due="2040-01-02T03:04:05"
        )
        found = await queue.get("t", "one")
        assert found is not None
        assert found.due_ms == 2_209_086_245_000
        await expect(page.locator("tbody")).to_contain_text("move")
        await console.do("Cancel …", "1 message", "Cancel", "one: cancelled")
        await expect(page.locator("main")).to_contain_text("It is not there")
        assert await queue.get("t", "one") is None


async def test_what_cannot_be_shown_as_text_says_so(consoled):
    async with consoled() as console:
        await console.queue.put("t", bytes(range(256)) * 40, id="bin", delay="1h")
        await console.queue.put("t", "x" * 300_000, id="long", delay="1h")
        await console.open("#/messages?topic=t")
        await expect(console.page.locator("tbody")).to_contain_text("10.2 KB that are not text")
        await console.open("#/message?topic=t&id=bin")
        await expect(console.page.locator("main")).to_contain_text("no text in UTF-8")
        await expect(console.page.get_by_label("Body")).to_contain_text("00 01 02")
        await console.open("#/message?topic=t&id=long")
        await console.button("Show all 300,000 characters").click()
        assert len(await console.page.get_by_label("Body").inner_text()) == 300_000


async def test_all_that_match_are_counted_before_they_are_changed(consoled):
    async with consoled() as console:
        queue = console.queue
        await queue.put_many("t", [{"n": at % 3} for at in range(30)], delay="1h")
        await console.open("#/messages?topic=t&where=n%20%3D%3D%20%601%60")
        await console.button("Cancel all that match …").click()
        await expect(console.dialog).to_contain_text("This touches 10 messages.")
        await console.button("Back", console.dialog).click()
        assert (await queue.stats()).topics["t"].delayed == 30
        await console.do("Cancel all that match …", "10 messages", "Cancel them", "10 cancelled")
        assert (await queue.stats()).topics["t"].delayed == 20
        await console.open("#/messages?topic=t")
        await console.do(
            "Reschedule all that match …", "20 messages", "Reschedule", "20 moved",
            due="2040-01-01T00:00",
        )  # fmt: skip


async def test_dead_letters__more_die__are_shown_by_reason(consoled):
    async with consoled() as console:
        page, queue = console.page, console.queue
        await queue.put_many("t", ["x"] * 10)
        await queue.bury(await queue.take("t", 3), reason="timeout")
        await console.open("#/dead?topic=t")
        status = page.get_by_role("status").filter(has_text="reason")
        await expect(status).to_have_text("3 messages for 1 reason.")
        await queue.bury(await queue.take("t", 5), reason="404")
        await expect(status).to_have_text("8 messages for 2 reasons.")
        await queue.kick("t", limit=100)
        await expect(status).to_have_text("0 messages for 0 reasons.")


async def test_dead_letters_are_redriven_by_reason_and_with_pace(consoled):
    async with consoled() as console:
        page, queue = console.page, console.queue
        await queue.put_many("t", ["x"] * 10)
        batch = list(await queue.take("t", 10))
        await queue.bury(batch[:6], reason="timeout")
        await queue.bury(batch[6:], reason="404")
        await console.open("#/dead")
        await page.get_by_role("link", name="t", exact=True).click()
        await expect(page.get_by_role("status").filter(has_text="reasons")).to_have_text(
            "10 messages for 2 reasons."
        )
        row = page.get_by_role("row", name=re.compile("^timeout"))
        await console.button("Kick …", row).click()
        await expect(console.dialog).to_contain_text("This touches 6 messages.")
        await console.dialog.locator("[name=pace]").fill("2")
        await console.button("Kick them", console.dialog).click()
        await console.said("6 kicked")
        dues = sorted((await queue.scan("t", "delayed")).messages.due_ms.tolist())
        dues += (await queue.scan("t", "ready")).messages.due_ms.tolist()
        seconds = [round((due - min(dues)) / 1000) for due in sorted(dues)]
        assert seconds == [0, 0, 1, 1, 2, 2]
        await console.do("Kick all …", "4 messages", "Kick them", "4 kicked")
        assert (await queue.stats()).topics["t"].dead == 0


async def test_a_topic_is_paused_and_gets_a_message(consoled):
    async with consoled() as console:
        page, queue = console.page, console.queue
        await queue.put("t", "x")
        await console.open("#/topic?name=t")
        await console.do("Pause …", "1 message wait", "Pause", "t is paused")
        assert (await queue.settings("t")).paused
        await console.heading("Topic t (paused)")
        await console.do("Resume …", "1 message wait", "Resume", "t is resumed")
        await page.get_by_role("link", name="Put a message").click()
        await page.get_by_label("Body").fill("<b>hello</b>")
        await page.get_by_label("Id (made").fill("mine")
        await page.get_by_label("Delay").fill("1h")
        await console.do("Put …", "one message", "Put", "created as mine")
        found = await queue.get("t", "mine")
        assert found is not None
        assert found.body == b"<b>hello</b>"


async def test_schedules_are_paused_resumed_and_deleted(consoled):
    async with consoled() as console:
        page, schedules = console.page, console.queue.schedules
        off = {"days_off": ["sat", "2100-12-25"], "when_off": "before"}
        await schedules.put("daily", "t", b"x", cron="0 9 * * *", zone="Europe/Berlin", **off)
        await console.open("#/schedules")
        await page.get_by_role("link", name="daily").click()
        await expect(page.locator("main")).to_contain_text("sat, 2100-12-25: before")
        await expect(page.locator("ol li")).to_have_count(10)
        await console.do("Pause …", "one schedule", "Pause", "daily: replaced")
        found = await schedules.get("daily")
        assert found is not None
        assert found.schedule.paused
        await console.do("Resume …", "one schedule", "Resume", "daily: replaced")
        await console.do("Run now …", "one schedule", "Run now", "daily: created")
        assert len(await console.queue.take("t", 10)) == 1
        await console.do("Delete …", "one schedule", "Delete", "daily: cancelled")
        await console.heading("Schedules")
        assert await schedules.get("daily") is None


async def test_a_schedule_is_put_and_changed(consoled):
    async with consoled() as console:
        page, schedules = console.page, console.queue.schedules
        await console.open("#/schedules")
        await page.get_by_role("link", name="Put a schedule").click()
        await page.get_by_label("Name").fill("daily")
        await page.get_by_label("Topic").fill("t")
        await page.get_by_label("Rule").fill("0 0 9 ? * 2-6")
        await page.get_by_label("Written for").select_option("quartz")
        await page.get_by_label("Zone").fill("Asia/Tokyo")
        await page.get_by_label("Days off").fill("2100-12-25, 2100-12-26")
        await page.get_by_label("Jitter").fill("30s")
        await page.get_by_label("Body").fill("<b>x</b>")
        await console.do("Put …", "T09:00:00+09:00 and so on", "Put", "daily: created")
        (first,) = [one async for one in schedules.each()]
        kept = first.schedule
        assert (kept.topic, kept.cron, kept.body) == ("t", "0 0 9 * * 1-5", b"<b>x</b>")
        assert (kept.zone, kept.jitter_ms) == ("Asia/Tokyo", 30_000)
        assert kept.days_off == ("2100-12-25", "2100-12-26")
        await schedules.change(
            "daily", headers={"a": "1"}, ttl="1h", start="2090-01-02T03:04:05.250Z"
        )
        await console.heading("Schedule daily")
        await page.get_by_role("link", name="Change").click()
        await expect(page.get_by_label("Rule")).to_have_value("0 0 9 * * 1-5")
        await page.get_by_label("Fires by").select_option("every")
        await page.get_by_label("Rule").fill("1h30m")
        await page.get_by_label("Days off").fill("")
        await page.get_by_label("While the last").select_option("skip")
        await console.do("Change …", "It fires at 2090-01-02T", "Change", "daily: replaced")
        changed = (await schedules.get("daily")).schedule
        assert (changed.every_ms, changed.cron, changed.overlap) == (5_400_000, None, "skip")
        assert (changed.headers, changed.ttl_ms, changed.body) == ({"a": "1"}, 3_600_000, kept.body)
        assert from_ms(changed.start_ms).isoformat() == "2090-01-02T03:04:05.250000+00:00"
        assert (changed.days_off, changed.jitter_ms, changed.zone) == ((), 30_000, "Asia/Tokyo")


async def test_a_change_leaves_a_body_that_is_no_text(consoled):
    async with consoled() as console:
        await console.queue.schedules.put("daily", "t", b"\xff\x00", cron="0 9 * * *")
        await console.open("#/scheduleform?name=daily")
        await expect(console.page.locator("main")).to_contain_text("It has 2 bytes")
        await console.page.get_by_label("Zone").fill("Asia/Tokyo")
        await console.do("Change …", "T09:00:00+09:00", "Change", "daily: replaced")
        changed = (await console.queue.schedules.get("daily")).schedule
        assert (changed.body, changed.zone) == (b"\xff\x00", "Asia/Tokyo")


async def test_a_rule_that_cannot_be_read_is_not_put(consoled):
    async with consoled() as console:
        page = console.page
        await console.open("#/scheduleform")
        await page.get_by_label("Name").fill("daily")
        await page.get_by_label("Topic").fill("t")
        await page.get_by_label("Rule").fill("*/90 * * * *")
        await page.get_by_role("button", name="Put …").click()
        dialog = page.locator("dialog")
        await expect(dialog.get_by_role("alert")).to_contain_text('or every="90m"')
        await expect(dialog.get_by_role("button", name="Put", exact=True)).to_be_disabled()


async def test_what_became_of_the_last_runs_is_shown(consoled):
    async with consoled() as console:
        page, queue = console.page, console.queue
        await queue.schedules.put("daily", "t", b"x", cron="0 9 * * *")
        for _ in range(2):
            await queue.schedules.run("daily")
        await queue.bury((await queue.take("t", 1))[0], "no paper")
        await console.open("#/schedule?name=daily")
        runs = page.get_by_role("table", name="Last runs").locator("tbody tr")
        await expect(runs).to_have_count(2)
        await expect(runs.nth(0)).to_contain_text("waiting")
        await expect(runs.nth(1)).to_contain_text("dead")
        await runs.nth(1).get_by_role("link").click()
        await expect(page.locator("main")).to_contain_text("no paper")


async def test_takers_and_health_are_shown(consoled):
    async with consoled() as console:
        page, queue = console.page, console.queue
        await queue.put_many("t", ["x"] * 9)
        await queue.take("t", 5, owner="ann", lease="1h")
        await console.open("#/takers")
        await expect(page.get_by_role("row", name=re.compile("^ann t 5 in"))).to_be_visible()
        await queue.take("t", 4, owner="bob", lease="1h")
        await expect(page.get_by_role("row", name=re.compile("^bob t 4 in"))).to_be_visible()
        await console.open("#/health")
        await expect(page.locator("main")).to_contain_text("The store takes messages.")
        await expect(page.get_by_role("row", name=re.compile("^From due"))).to_be_visible()


async def test_a_stream_that_ends_is_opened_again(consoled):
    async with consoled() as console:
        await console.open()
        await expect(console.page.locator("#live")).to_have_text("live")
        for connection in list(console.server.port.connections):
            connection.abort()
        await console.queue.put("later", "x")
        await expect(console.page.get_by_role("link", name="later")).to_be_visible()
        await until_async(lambda: console.server.service.board.watchers == 1)
