"""Whether a page of HTML is well-formed, and what elements it has."""

from __future__ import annotations

from html.parser import HTMLParser


class Elements(HTMLParser):
    """Every element of a page, and that each is closed in order."""

    VOID = frozenset({"meta", "input", "br", "img"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Open it, if it has an end."""
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """One that is closed as it opens."""
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """It must be the one opened last."""
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag


def balanced(page: str) -> bool:
    """Whether every element of `page` is closed in order."""
    return not Elements(page).open
