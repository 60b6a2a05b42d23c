"""Pictures of the console for the docs, of a server that is filled for them.

``python -m tools.screenshots [FOLDER]`` writes them to ``docs/images``, or into a folder.
"""

import asyncio
import random
import shutil
import sys
from pathlib import Path

from playwright.async_api import Browser, async_playwright

import dwell
from bench.servers import dwell_server

FOLDER = Path(__file__).parents[1] / "docs" / "images"

#: Each picture: where it is of, how wide it is, and whether it is dark.
PICTURES = {
    "console-topics": ("#/topics", 1100, False),
    "console-load": ("#/load?unit=hour", 1100, True),
    "console-messages": ("#/messages?topic=orders.unpaid", 1100, False),
    "console-message": ("#/message?topic=orders.unpaid&id=order-1001", 1100, False),
    "console-dead": ("#/dead?topic=mail.reminders", 1100, False),
    "console-phone": ("#/topics", 390, True),
}
_TOPICS = ("orders.unpaid", "orders.shipped", "mail.reminders", "mail.digests", "reports.daily")
_HOUR_MS = 3_600_000


async def fill(queue: dwell.Queue) -> None:
    """Have something on every page."""
    draw, now_ms = random.Random(7), queue.clock.now_ms()
    for at, topic in enumerate(_TOPICS):
        count = 4_000 // (at + 1)
        # Most of it falls due by day.
        hours = [draw.gauss(14, 4) + 24 * draw.randrange(7) for _ in range(count)]
        due = [now_ms + max(60_000, int(hour * _HOUR_MS)) for hour in hours]
        await queue.put_many(topic, [{"n": n} for n in range(count)], due=due)
    for n in range(8):
        body = {"order": 1001 + n, "city": draw.choice(["Rome", "Oslo"]), "total": 20 + n}
        await queue.put("orders.unpaid", body, id=f"order-{1001 + n}", key="ann", delay=f"{n + 1}m")
    await queue.reschedule("orders.unpaid", "order-1001", delay="50s")
    await queue.put_many("mail.reminders", ["x"] * 61)
    batch = list(await queue.take("mail.reminders", 60, owner="mailer-1"))
    await queue.bury(batch[:23], reason="SMTPServerDisconnected: timeout after 30 s")
    await queue.bury(batch[23:30], reason="550 no such mailbox")
    await queue.ack(batch[30:50])
    await queue.configure("mail.digests", paused=True)
    await queue.schedules.put(
        "daily-report", "reports.daily", b"all", cron="0 9 * * mon-fri", zone="Europe/Berlin"
    )


async def take(url: str, folder: Path) -> None:
    """Fill a server and take all pictures of its console."""
    async with dwell.open(url) as queue:
        await fill(queue)
    program = shutil.which("chromium")
    if program is None:
        raise SystemExit("chromium is not installed; make setup installs it")
    folder.mkdir(parents=True, exist_ok=True)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program)
        for name in PICTURES:
            await _picture(browser, url, folder, name)
        await browser.close()


async def _picture(browser: Browser, url: str, folder: Path, name: str) -> None:
    place, width, dark = PICTURES[name]
    context = await browser.new_context(
        viewport={"width": width, "height": 640},
        color_scheme="dark" if dark else "light",
        timezone_id="UTC",
    )
    page = await context.new_page()
    await page.goto(f"{url}/console/{place}")
    await page.wait_for_selector("tbody tr", state="attached")
    await page.screenshot(path=folder / f"{name}.png", animations="disabled")
    await context.close()


def main() -> None:
    """Take the pictures."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    with dwell_server() as (host, port):
        asyncio.run(take(f"http://{host}:{port}", folder))


if __name__ == "__main__":
    main()
