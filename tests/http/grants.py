"""Files of tokens for servers of tests."""

from pathlib import Path

from dwell.server.tokens import Tokens, hash_of


def tokens_of(folder: Path, grants: dict[str, str]) -> Tokens:
    """Return tokens whose secrets are their names, each with its grant in TOML."""
    path = folder / "tokens.toml"
    path.write_text(
        "\n".join(
            f'[[token]]\nname = "{name}"\nsha256 = "{hash_of(name)}"\n{grant}\n'
            for name, grant in grants.items()
        )
    )
    path.chmod(0o600)
    return Tokens.load(path)
