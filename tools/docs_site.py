"""The site of the documentation: docs/ and the pages that it links to, with search.

``python -m tools.docs_site [FOLDER]`` builds it into ``FOLDER/VERSION`` (by default in ``site``),
next to the sites of other versions, which readers can choose. A broken link is an error.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path, PurePosixPath

from dwell.version import VERSION

ROOT = Path(__file__).parents[1]
#: A link of Markdown to a path: its text, the path, and the anchor.
_LINK = re.compile(r"\[([^][]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")


def main() -> None:
    """Build the site."""
    site = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "site").absolute()
    with tempfile.TemporaryDirectory() as folder:
        stage = Path(folder)
        shutil.copytree(ROOT / "docs", stage / "docs")
        _stage_pages(stage / "docs")
        shutil.copy(ROOT / "zensical.toml", stage)
        program = Path(sys.executable).with_name("zensical")
        done = subprocess.run([program, "build", "--strict"], cwd=stage, check=False)
        if done.returncode:
            sys.exit(done.returncode)
        shutil.rmtree(site / VERSION, ignore_errors=True)
        shutil.copytree(stage / "site", site / VERSION)
    versions = sorted((path.name for path in site.iterdir() if path.is_dir()), reverse=True)
    entries = [{"version": name, "title": name, "aliases": []} for name in versions]
    (site / "versions.json").write_text(json.dumps(entries))
    print(f"{site / VERSION}/index.html")


def _stage_pages(docs: Path) -> None:
    """Write the pages of docs/, and those elsewhere that they link to, with links of the site."""
    waiting = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")]
    seen = set(waiting)
    while waiting:
        page = waiting.pop()
        text, linked = _with_site_links(page, (ROOT / page).read_text())
        place = docs / _place(page)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        waiting += linked - seen
        seen |= linked


def _with_site_links(page: str, text: str) -> tuple[str, set[str]]:
    """Return a page whose links lead to places of the site, and the pages that it links to.

    What the site does not show, such as a source file, stays as text.
    """
    linked = set()

    def replaced(link: re.Match[str]) -> str:
        words, path, anchor = link.groups()
        target = os.path.normpath(PurePosixPath(page).parent / path)
        if not (ROOT / target).exists():
            return link[0]
        if target.endswith(".md"):
            linked.add(target)
        elif not target.startswith("docs/"):
            return words
        start = PurePosixPath(_place(page)).parent
        return f"[{words}]({os.path.relpath(_place(target), start)}{anchor or ''})"

    return _LINK.sub(replaced, text), linked


def _place(path: str) -> str:
    """Return the path within the site of a file of the project."""
    return path.removeprefix("docs/") if path.startswith("docs/") else f"project/{path}"


if __name__ == "__main__":
    main()
