"""The docs follow the code: generated parts are up to date, links lead somewhere."""

import ast
import re
from pathlib import Path

import pytest

import dwell
from tools import reference_docs, states_docs

ROOT = Path(__file__).parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]

_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(#[^)\s]*)?\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_SKIPPED = re.compile(r"<!-- skip -->\n```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
_MODULE = re.compile(r"python -m (tools\.\w+|bench)\b")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors_of(path: Path) -> set[str]:
    heads = _HEADING.findall(path.read_text())
    return {"#" + re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def test_the_states_are_up_to_date():
    assert states_docs.PAGE.read_text() == states_docs.render(), "run python -m tools.states_docs"


@pytest.mark.parametrize("path", reference_docs.pages(), ids=name_of)
def test_the_made_parts_are_up_to_date(path):
    text = path.read_text()
    assert text == reference_docs.render(text), "run python -m tools.reference_docs"
    assert text.count("<!-- made:") == text.count("<!-- /made -->")


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_somewhere(path):
    for target, anchor in _LINK.findall(path.read_text()):
        if "://" in target:
            continue
        place = (path.parent / target).resolve() if target else path
        assert place.exists(), f"{target} is not there"
        if anchor:
            assert anchor in anchors_of(place), f"{target}{anchor} is not there"


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_rows_of_tables_have_lines_of_their_own(path):
    joined = [line for line in path.read_text().splitlines() if re.search(r"\S.*\|---", line)]
    assert all(re.fullmatch(r"(\|:?---:?)+\|", line) for line in joined)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_code_that_is_not_run_is_code_all_the_same(path):
    for block in _SKIPPED.findall(path.read_text()):
        ast.parse(block)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_the_tools_that_a_page_names_exist(path):
    for module in _MODULE.findall(path.read_text()):
        place = ROOT / module.replace(".", "/")
        assert place.is_dir() or place.with_suffix(".py").exists()


def test_every_page_can_be_reached():
    indexes = [ROOT / "docs" / "README.md", ROOT / "docs" / "design" / "README.md"]
    reached = {
        (index.parent / target).resolve()
        for index in indexes
        for target, _ in _LINK.findall(index.read_text())
    }
    lost = [name_of(page) for page in PAGES if "docs/" in name_of(page) and page not in reached]
    assert [page for page in lost if page not in map(name_of, indexes)] == []


def test_the_api_names_every_verb_and_every_error():
    api = (ROOT / "docs" / "reference" / "api.md").read_text()
    for verb in vars(dwell.SyncQueue).keys() - {"open", "close"}:
        if not verb.startswith("_"):
            assert f"### {verb}\n" in api, f"{verb} is not in api.md"
    errors = (ROOT / "docs" / "reference" / "errors.md").read_text()
    for name in dwell.__all__:
        found = getattr(dwell, name)
        if isinstance(found, type) and issubclass(found, dwell.DwellError):
            assert name in errors, f"{name} is not in errors.md"


def test_the_makefile_is_in_the_readme():
    readme = (ROOT / "README.md").read_text()
    for name in ("setup", "demo", "test", "check", "bench", "crash", "help"):
        assert re.search(rf"^{name}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert f"make {name} " in readme
