"""Writes every page that is made from the code: `python -m docs.generate`, which is `make docs`."""

from pathlib import Path

from docs.generate import api_page, man_pages, models_page, options_page

DOCS = Path(__file__).parents[1]


def pages() -> dict[Path, str]:
    """What each file has to say."""
    return {
        DOCS / "options.md": options_page.page(),
        DOCS / "api.md": api_page.page(),
        DOCS / "models.md": models_page.page((DOCS / "models.md").read_text(encoding="utf-8")),
        **{DOCS / "man" / name: text for name, text in man_pages.pages().items()},
    }


def stale() -> list[Path]:
    """Files that a command that is gone has left behind."""
    return [path for path in (DOCS / "man").glob("*.1") if path not in pages()]


if __name__ == "__main__":
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in stale():
        path.unlink()
