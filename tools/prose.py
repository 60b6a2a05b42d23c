"""Count what makes technical English slow to read, in docstrings, comments and pages.

``python -m tools.prose [--show N] [PATH ...]``: a construction is a pattern of words; each path has
a limit of them in 1,000 words. Without paths the limits of the project are checked, and the status
is 1 when one is exceeded. Code, tables and what is quoted do not count.
"""

import argparse
import ast
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: The constructions in 1,000 words that are allowed. Well-kept projects have 0.5 to 1.6.
LIMITS = {"src": 3.0, "docs": 2.0, "README.md": 2.0, "CONTRIBUTING.md": 3.0}

#: What is counted, by what to write in its place.
CONSTRUCTIONS = {
    "begin with the subject, not with a clause": (
        r"(?:^|(?<=[.!?] ))(?:What|Who|Whoever|Whatever)\b(?![^.!?]*\?)"
    ),
    "again, at the same time, beside it: use common words": (
        r"\b(?:anew|begun|beside|meanwhile|hereby|thereby|by itself|by themselves)\b"
    ),
    "name the noun, not those that": r"\b(?:those (?:of|that|which|who)|that of)\b",
    "two sentences, not of which": r"\b(?:at|by|for|from|in|of|to|with) which\b",
    "name the noun, not one that": r"\b(?:one that|the ones?|ones)\b",
    "say what it does, not Let X": r"^Let \w+",
    "no longer, not any more": r"\b(?:any more|no more|nothing more)\b",
    "name who it is": r"\b(?:by|for|from|of|to|with) (?:who|whoever)\b",
    "if there is, not where there is": r"\b(?:as|what|where) there (?:are|is)\b",
    "that many, not so many": r"\bso (?:far|long|many|much) (?!as\b|that\b)",
    "is not valid, not is none": r"\b(?:are|is) none\b",
    "use the active voice": r"\bit is (?:asked|looked|said|told)\b",
    "a caller is not a he": r"\b(?:he|him|his)\b",
}


def main(words: list[str] | None = None) -> int:
    """Print the counts of each path; return 1 where a limit is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m tools.prose", description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--show", type=int, default=0, help="so many examples of each")
    given = parser.parse_args(words)
    failed = False
    for path in given.paths or [ROOT / name for name in LIMITS]:
        rate = _rate(path, given.show)
        limit = LIMITS.get(path.name) if not given.paths else None
        print(f"{path.name}: {rate:.1f} in 1,000 words" + (f", at most {limit}" if limit else ""))
        failed |= limit is not None and rate > limit
    return int(failed)


def _rate(path: Path, show: int) -> float:
    rules = {name: re.compile(rule, re.MULTILINE) for name, rule in CONSTRUCTIONS.items()}
    found: Counter[str] = Counter()
    count = 0
    files = [path] if path.is_file() else sorted([*path.rglob("*.py"), *path.rglob("*.md")])
    for file in files:
        for text in texts_of(file):
            count += len(re.findall(r"[A-Za-z']+", text))
            for name, rule in rules.items():
                for match in rule.finditer(text):
                    found[name] += 1
                    if found[name] <= show:
                        around = text[max(match.start() - 30, 0) : match.end() + 40]
                        print(f"{file}: {name}: ...{around}...")
    return 1000 * found.total() / max(count, 1)


def texts_of(file: Path) -> Iterator[str]:
    """Yield the docstrings and comments of a module, or the paragraphs of a page."""
    pieces = _of_module(file) if file.suffix == ".py" else _of_page(file.read_text())
    for piece in pieces:
        yield re.sub(r"\s+", " ", re.sub(r"`+[^`]*`+", "x", piece)).strip()


def _of_module(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
    with tokenize.open(file) as lines:
        for token in tokenize.generate_tokens(lines.readline):
            if token.type == tokenize.COMMENT:
                yield token.string.lstrip("#:! ")


def _of_page(text: str) -> list[str]:
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    lines = [line for line in text.splitlines() if not re.match(r"\s*(\||<!--|#)", line)]
    return re.split(r"\n\s*\n", "\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
