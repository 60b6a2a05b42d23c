"""Who can use the console: by keyboard, with a screen reader, on a phone, in the dark."""

import re

import pytest
from playwright.async_api import expect

PLACES = (
    *("#/topics", "#/topic?name=t", "#/load", "#/messages?topic=t", "#/message?topic=t&id=one"),
    *(
        "#/dead",
        "#/dead?topic=t",
        "#/schedules",
        "#/schedule?name=s",
        "#/takers",
        "#/health",
        "#/put",
    ),
)


async def _fill(queue):
    """Have something on every page, some of it long."""
    await queue.put(
        "t", "word" * 500, id="one", key="k" * 200, headers={"h": "v" * 500}, delay="1h"
    )
    await queue.put("t", {"a": 1}, id="i" * 256, delay="2h")
    await queue.put_many("t", ["x"] * 3)
    batch = list(await queue.take("t", 3, owner="o" * 200))
    await queue.bury(batch[:1], reason="e" * 900)
    await queue.schedules.put("s", "t", b"x", cron="0 9 * * *")
    await queue.put("n" * 200, "x")


@pytest.mark.parametrize("width", [320, 390])
async def test_it_fits_a_phone(consoled, width):
    async with consoled(width=width) as console:
        await _fill(console.queue)
        for place in PLACES:
            await console.open(place)
            wide = await console.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, place


async def test_it_is_dark_where_that_is_wanted(consoled):
    shades = []
    for dark in (False, True):
        async with consoled(dark=dark) as console:
            await console.open()
            style = "(name) => getComputedStyle(document.body)[name]"
            colors = [
                await console.page.evaluate(style, one) for one in ("backgroundColor", "color")
            ]
            shades.append([sum(map(int, re.findall(r"\d+", color)[:3])) for color in colors])
    (light, ink), (night, chalk) = shades
    assert light > ink
    assert night < chalk


async def test_a_screen_reader_finds_its_way(consoled):
    async with consoled() as console:
        await _fill(console.queue)
        page = console.page
        for place in PLACES:
            await console.open(place)
            for landmark in ("banner", "main"):
                await expect(page.get_by_role(landmark)).to_have_count(1)
            await expect(page.get_by_role("navigation", name="Pages")).to_have_count(1)
            await expect(page.get_by_role("heading", level=1)).to_have_count(1)
            assert await page.get_by_role("navigation").locator("[aria-current=page]").count() == 1
            tree = await page.locator("body").aria_snapshot()
            # Each field, button, link and picture has a name.
            nameless = re.findall(
                r"- (?:textbox|button|link|combobox|spinbutton|img|table)(?: \[|:|$)", tree
            )
            assert not nameless, (place, tree)
            assert await page.title() != "Dwell"


async def test_all_of_it_goes_by_keyboard(consoled):
    async with consoled() as console:
        page, keyboard = console.page, console.page.keyboard
        await console.queue.put("t", "x", id="one", delay="1h")
        await console.open("#/messages?topic=t")
        focused = "document.activeElement.textContent"
        await keyboard.press("Tab")
        assert await page.evaluate(focused) == "Skip to the content"
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert await page.evaluate(outline) == "solid"
        await keyboard.press("Enter")
        assert await page.evaluate("document.activeElement.id") == "main"
        for _ in range(40):
            await keyboard.press("Tab")
            if await page.evaluate(focused) == "one":
                break
        await keyboard.press("Enter")
        await console.heading("Message one")
        for _ in range(10):
            await keyboard.press("Tab")
            if await page.evaluate(focused) == "Cancel …":
                break
        await keyboard.press("Enter")
        await expect(console.button("Cancel", console.dialog)).to_be_focused()
        await keyboard.press("Escape")
        await expect(console.dialog).to_be_hidden()
        await expect(console.button("Cancel …")).to_be_focused()
        assert (await console.queue.stats()).topics["t"].delayed == 1
        await keyboard.press("Enter")
        await expect(console.button("Cancel", console.dialog)).to_be_focused()
        await keyboard.press("Enter")
        await console.said("one: cancelled")


async def test_who_is_in_a_row_stays_there_while_it_changes(consoled):
    async with consoled() as console:
        for at in range(5):
            await console.queue.put(f"t{at}", "x", delay="1h")
        await console.open("#/topics?sort=delayed")
        link = console.page.get_by_role("link", name="t3", exact=True)
        await link.focus()
        await console.queue.put_many("t3", ["x"] * 10, delay="1h")
        await expect(console.page.locator("tbody tr").first).to_contain_text("t3")
        await expect(link).to_be_focused()
