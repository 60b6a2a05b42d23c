"""What the console keeps out: hostile content, other sites, and what somebody may not see."""

from playwright.async_api import expect

from tests.console.browser import browsing, tokens_in
from tests.http.served import served
from tests.waiting import until_async

EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"


async def test_hostile_content_is_text(consoled):
    async with consoled() as console:
        page, queue = console.page, console.queue
        words = {"id": EVIL, "key": EVIL, "headers": {EVIL: EVIL}}
        await queue.put("t", EVIL, delay="1h", **words)
        await queue.put("t", "\u202egnp.exe\x1b[2J", id="\u202eturned", delay="1h")
        await queue.put("dead", EVIL, id=EVIL)
        await queue.bury(await queue.take("dead"), reason=EVIL)
        await queue.put("held", "x")
        await queue.take("held", owner=EVIL)
        await queue.schedules.put("s", "t", EVIL.encode(), every="1h")
        some = "%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E%3Cscript%3Ealert(2)%3C%2Fscript%3E"
        for place, count in (
            ("#/messages?topic=t", 3),
            (f"#/message?topic=t&id={some}", 5),
            ("#/dead?topic=dead", 2),
            (f"#/message?topic=dead&id={some}", 3),
            ("#/takers", 1),
            ("#/schedule?name=s", 1),
            (f"#/topic?name={some}", 0),
            (f"#/{some}", 0),
        ):
            await console.open(place)
            await expect(page.locator("main :is(img, script, iframe)")).to_have_count(0)
            assert (await page.inner_text("main")).count(EVIL) >= count, place
        await console.open("#/messages?topic=t")
        await expect(page.locator("main")).to_contain_text("\\u202eturned")
        await expect(page.locator("main")).to_contain_text("\\u001b[2J")
        # The question and what was done name it, too.
        await console.open(f"#/message?topic=t&id={some}")
        await console.do("Cancel …", "1 message", "Cancel", f"{EVIL}: cancelled")
        await expect(page.locator("dialog :is(img, script), #said :is(img, script)")).to_have_count(
            0
        )


async def test_nothing_but_its_own_files_runs(consoled):
    async with consoled() as console:
        await console.open()
        page = console.page
        # What a test evaluates may do more than a page, so the page does it a little later.
        await page.evaluate(
            """() => new Promise((done) => setTimeout(() => {
                window.ran = [];
                const sink = (work) => {
                    try { work(); ran.push("ran"); } catch (error) { ran.push(error.name); }
                };
                const script = document.createElement("script");
                sink(() => { document.body.innerHTML = "<b>x</b>"; });
                sink(() => eval("1"));
                sink(() => { script.text = "ran.push('script')"; });
                document.body.append(script);
                done();
            }))"""
        )
        assert await page.evaluate("ran") == ["TypeError", "EvalError", "TypeError"]
        await page.evaluate("() => { document.body.append(document.createElement('iframe')) }")
        await page.evaluate("async () => { await fetch('http://127.0.0.1:9/x').catch(() => 0) }")
        assert "connect-src" in await page.evaluate("refused")
        await page.evaluate("refused = []")


async def test_no_page_may_frame_it(consoled):
    async with consoled() as console, served() as other:
        page = console.page
        # The other site is one of the same address, too.
        for site in ("about:blank", f"{other.url}/healthz"):
            await page.goto(site)
            await page.evaluate(
                """(url) => new Promise((done) => {
                    const frame = document.createElement("iframe");
                    frame.onload = done; frame.src = url; document.body.append(frame);
                })""",
                f"{console.server.url}/console/",
            )
            assert all("/console" not in frame.url for frame in page.frames), page.frames


async def test_no_page_of_another_site_drives_it(consoled):
    async with consoled() as console, served() as other:
        await console.queue.put("t", "x", id="one")
        page, url = console.page, console.server.url
        await page.goto(f"{other.url.replace('127.0.0.1', 'localhost')}/healthz")
        for body in ("{}", '{"ids":["one"]}'):
            for mode in ("cors", "no-cors"):
                await page.evaluate(
                    "([url, how]) => fetch(url, {method: 'POST', ...how}).catch(() => 0)",
                    [f"{url}/v1/topics/t/cancel", {"body": body, "mode": mode}],
                )
        # A window that it opens is out of its reach.
        async with page.expect_popup() as opened:
            await page.evaluate("(url) => { window.theirs = open(url) }", f"{url}/console/")
        popup = await opened.value
        await expect(popup.get_by_role("heading", level=1)).to_be_visible()
        assert await page.evaluate("theirs.closed")
        assert await popup.evaluate("opener") is None
        assert (await console.queue.stats()).topics["t"].ready == 1


TOKENS = """
[[token]]
name = "all"
put = [""]
take = [""]
admin = [""]
[[token]]
name = "orders"
put = ["orders."]
admin = ["orders."]
[[token]]
name = "looks"
admin = ["orders."]
[[token]]
name = "reads"
read = ["orders.", "dwell:"]
[[token]]
name = "puts"
put = ["orders."]
"""


async def _log_in(console, token):
    await console.page.get_by_label("Token").fill(token)
    await console.button("Log in").click()


async def test_each_page_is_within_the_rights_of_a_token(consoled, tmp_path):
    async with consoled(tokens_in(tmp_path, TOKENS)) as console:
        page, queue = console.page, console.queue
        for topic in ("orders.a", "secret.b"):
            await queue.put_many(
                topic, ["x"] * 5, delay="1h", ids=[f"{topic}{n}" for n in range(5)]
            )
            await queue.put(topic, "x")
        await queue.take("secret.b", owner="somebody")
        await console.open()
        await console.heading("Log in")
        await _log_in(console, "nobody")
        await expect(page.get_by_role("alert")).to_have_text("the token is unknown")
        await _log_in(console, "orders")
        await console.heading("Topics")
        await expect(page.locator("tbody tr")).to_have_count(1)
        await expect(page.locator(".sums li").first).to_contain_text("1")
        assert await page.get_by_role("navigation").get_by_role("link").all_inner_texts() == [
            "Topics", "Coming load", "Messages", "Dead letters", "Takers", "Put",
        ]  # fmt: skip
        await console.open("#/load?unit=day")
        await expect(page.get_by_role("status").filter(has_text="fall")).to_contain_text(
            "5 messages"
        )
        await console.open("#/takers")
        await expect(page.locator("main")).not_to_contain_text("somebody")
        # What is there, and what is not, look alike to who may not see it.
        seen = set()
        for place in (
            *(
                "topic?name=secret.b",
                "topic?name=no",
                "messages?topic=secret.b",
                "messages?topic=no",
            ),
            *(
                "message?topic=secret.b&id=secret.b1",
                "message?topic=no&id=no",
                "dead?topic=secret.b",
            ),
            *("load?topic=secret.b", "health", "schedules", "schedule?name=x", "nothing"),
        ):
            await page.goto("about:blank")
            await page.goto(f"{console.server.url}/console/#/{place}")
            await console.heading("There is nothing here")
            seen.add(await page.inner_text("main"))
        assert len(seen) == 1
        assert "secret" not in seen.pop()


async def test_who_only_looks_or_only_puts_sees_only_that(consoled, tmp_path):
    async with consoled(tokens_in(tmp_path, TOKENS)) as console:
        page, queue = console.page, console.queue
        await queue.put("orders.a", "x", id="one", delay="1h")
        await console.open()
        await _log_in(console, "looks")
        await console.open("#/messages?topic=orders.a")
        await expect(page.locator("tbody tr")).to_have_count(1)
        await expect(console.button("Cancel all that match …")).to_have_count(0)
        await console.open("#/topic?name=orders.a")
        await expect(console.button("Cancel all …")).to_have_count(0)
        await console.open("#/message?topic=orders.a&id=one")
        await expect(page.locator("main")).to_contain_text("takes the right to put")
        await expect(page.locator("tbody tr")).to_have_count(1)
        await console.button("Log out").click()
        await console.heading("Log in")
        assert await page.evaluate("sessionStorage.length") == 0
        await _log_in(console, "puts")
        await expect(page.get_by_role("navigation").get_by_role("link")).to_have_text(
            ["Messages", "Put"]
        )
        await console.open("#/message?topic=orders.a&id=one")
        await console.do("Cancel …", "1 message", "Cancel", "one: cancelled")


async def test_who_reads_sees_all_of_it_and_is_offered_no_change(consoled, tmp_path):
    async with consoled(tokens_in(tmp_path, TOKENS)) as console:
        page, queue = console.page, console.queue
        await queue.put("orders.a", "x", id="one", delay="1h")
        await queue.put("orders.a", "y", id="two", max_attempts=1)
        await queue.bury(await queue.take("orders.a"), reason="broken")
        await queue.put("secret.b", "x")
        await queue.schedules.put("nightly", "orders.a", b"x", every="1h")
        await console.open()
        await _log_in(console, "reads")
        await console.heading("Topics")
        await expect(page.get_by_role("navigation").get_by_role("link")).to_have_text(
            ["Topics", "Coming load", "Messages", "Dead letters", "Schedules", "Takers"]
        )
        await expect(page.locator("main")).not_to_contain_text("secret")
        for place, shown in (
            ("topic?name=orders.a", "Settings"),
            ("messages?topic=orders.a&state=delayed", "one"),
            ("messages?topic=orders.a&state=dead", "two"),
            ("message?topic=orders.a&id=one", "What happened to it"),
            ("message?topic=orders.a&id=two", "broken"),
            ("dead?topic=orders.a", "broken"),
            ("schedule?name=nightly", "every 1"),
        ):
            await console.open(f"#/{place}")
            await expect(page.locator("main")).to_contain_text(shown)
            # What asks back before it changes something ends so.
            await expect(page.get_by_role("button").filter(has_text="…")).to_have_count(0)


async def test_a_right_that_is_taken_away_ends_what_is_shown(consoled, tmp_path):
    tokens = tokens_in(tmp_path, TOKENS)
    async with consoled(tokens) as console:
        await console.queue.put("orders.a", "x")
        await console.open()
        await _log_in(console, "all")
        await expect(console.page.locator("tbody tr")).to_have_count(1)
        await until_async(lambda: console.server.service.board.watchers == 1)
        text = tokens.path.read_text()
        tokens.path.write_text(text[text.index("[[token]]", 20) :])
        tokens.reload()
        await console.heading("Log in")
        await until_async(lambda: console.server.service.board.watchers == 0)


async def test_a_token_is_kept_for_one_tab_and_in_no_cookie(consoled, tmp_path):
    async with consoled(tokens_in(tmp_path, TOKENS)) as console:
        await console.open()
        await _log_in(console, "all")
        await console.heading("Topics")
        assert await console.page.context.cookies() == []
        assert await console.page.evaluate("localStorage.length") == 0
        other = await console.page.context.new_page()
        await other.goto(f"{console.server.url}/console/")
        await expect(other.get_by_role("heading", level=1)).to_have_text("Log in")


async def test_a_name_that_is_not_the_servers_gets_nothing(browser):
    async with served() as server, browsing(browser, server) as console:
        answer = await console.page.request.get(
            f"{server.url}/console/", headers={"host": "evil.example.org"}
        )
        assert answer.status == 403
