"""A real Chromium that looks at a server of the test, and what it had to complain of."""

import contextlib
import re
import shutil
from collections.abc import AsyncIterator

from playwright.async_api import Browser, Locator, Page, async_playwright, expect

from dwell.server.tokens import Tokens, hash_of
from tests.http.served import Served, served

expect.set_options(timeout=20_000)

#: What a page complains of is noted before anything of it runs.
_NOTE = """
window.refused = [];
addEventListener("securitypolicyviolation", (event) => refused.push(event.violatedDirective));
"""


class Console:
    """The console of a server in one tab."""

    def __init__(self, server: Served, page: Page) -> None:
        self.server, self.page, self.queue = server, page, server.queue
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))

    async def open(self, place: str = "") -> None:
        """Show a page."""
        await self.page.goto(f"{self.server.url}/console/{place}")
        # What differs behind the # alone is no new page for the browser.
        await self.heading()

    async def heading(self, text: str | re.Pattern[str] | None = None) -> None:
        """Wait until a page is there."""
        heading = self.page.get_by_role("heading", level=1)
        await (
            expect(heading).to_be_visible() if text is None else expect(heading).to_have_text(text)
        )
        await expect(self.page.locator("main p", has_text=re.compile("^…$"))).to_have_count(0)

    def button(self, name: str, within: Locator | None = None) -> Locator:
        """Return a button by its words."""
        return (within or self.page).get_by_role("button", name=name, exact=True)

    @property
    def dialog(self) -> Locator:
        """The question that is asked back."""
        return self.page.get_by_role("dialog")

    async def said(self, words: str) -> None:
        """Wait until the console says what it did."""
        await expect(self.page.locator("#said")).to_contain_text(words)

    async def do(self, name: str, asked: str, label: str, said: str, **fields: str) -> None:
        """Click, read how many it touches, fill in the rest, do it, and read what it did."""
        await self.button(name).click()
        await expect(self.dialog).to_contain_text(asked)
        for field, value in fields.items():
            await self.dialog.locator(f"[name={field}]").fill(value)
        await self.button(label, self.dialog).click()
        await self.said(said)
        await expect(self.dialog).to_be_hidden()


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Run a Chromium, the one that the system has."""
    program = shutil.which("chromium")
    assert program, "chromium is not installed: make setup says how"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program)
        try:
            yield browser
        finally:
            await browser.close()


@contextlib.asynccontextmanager
async def browsing(
    browser: Browser, server: Served, *, width: int = 1200, dark: bool = False
) -> AsyncIterator[Console]:
    """Open a tab that shares nothing with others; at the end nothing of it may be refused."""
    context = await browser.new_context(
        viewport={"width": width, "height": 740},
        color_scheme="dark" if dark else "light",
        timezone_id="UTC",
    )
    try:
        page = await context.new_page()
        await page.add_init_script(_NOTE)
        console = Console(server, page)
        yield console
        if page.url.startswith(server.url):
            assert await page.evaluate("refused") == []
        assert console.complaints == []
    finally:
        await context.close()


@contextlib.asynccontextmanager
async def console_of(
    browser: Browser, tokens: Tokens | None = None, **options
) -> AsyncIterator[Console]:
    """Give the console of a server over a store in memory."""
    async with (
        served(tokens=tokens) as server,
        browsing(browser, server, **options) as console,
    ):
        yield console


def tokens_in(folder, text: str) -> Tokens:
    """Return the tokens of a text, in which ``name`` is also the token of each entry."""
    names = re.findall(r'^name = "(\w+)"$', text, re.MULTILINE)
    for name in names:
        text = text.replace(f'name = "{name}"', f'name = "{name}"\nsha256 = "{hash_of(name)}"')
    path = folder / "tokens.toml"
    path.write_text(text)
    path.chmod(0o600)
    return Tokens(path)
