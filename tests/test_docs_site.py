"""The site of the documentation: every page, with links that lead somewhere."""

import json
import subprocess
import sys

import pytest

from dwell.version import VERSION
from tools import docs_site


@pytest.mark.campaign
def test_it_has_every_page_and_a_search(tmp_path):
    (tmp_path / "0.0.1").mkdir()
    subprocess.run([sys.executable, "-m", "tools.docs_site", tmp_path], check=True)
    site = tmp_path / VERSION
    pages = [path for path in (docs_site.ROOT / "docs").rglob("*.md") if path.stem != "README"]
    assert pages
    for page in pages:
        assert (site / page.relative_to(docs_site.ROOT / "docs").with_suffix("")).is_dir()
    assert "delay queue" in (site / "index.html").read_text()
    assert "RabbitMQ" in (site / "search.json").read_text()
    entries = json.loads((tmp_path / "versions.json").read_text())
    assert [one["version"] for one in entries] == [VERSION, "0.0.1"]


@pytest.mark.parametrize(
    ("link", "shown", "pages"),
    [
        ("[a](../glossary.md)", "[a](../glossary.md)", {"docs/glossary.md"}),
        ("[a](../../README.md#figures)", "[a](../project/README.md#figures)", {"README.md"}),
        ("[a](../../src/dwell/store/base.py)", "a", set()),
        ("[a](../missing.md)", "[a](../missing.md)", set()),
        ("[a](https://example.org/x.md)", "[a](https://example.org/x.md)", set()),
    ],
)
def test_a_link_leads_to_a_place_of_the_site(link, shown, pages):
    assert docs_site._with_site_links("docs/howto/page.md", link) == (shown, pages)
