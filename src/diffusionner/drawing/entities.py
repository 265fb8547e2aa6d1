"""What a model returns: a list that knows how to draw itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from diffusionner.corpus import Entity


class Entities(list[Entity]):
    """The entities of one text, or of one sentence given as words.

    A list like any other; `text` and `labels` (the model's, in order: they choose the colours) are
    there to draw it.
    """

    def __init__(
        self,
        found: Iterable[Entity] = (),
        text: str | Sequence[str] = "",
        labels: Sequence[str] = (),
    ) -> None:
        super().__init__(found)
        self.text = text
        self.labels = list(labels)

    def characters(self) -> tuple[str, list[Entity]]:
        """The text and the entities in its characters, also where they count words."""
        if isinstance(self.text, str):
            return self.text, list(self)
        starts, at = [], 0
        for word in self.text:
            starts.append(at)
            at += len(word) + 1
        moved = [
            e._replace(start=starts[e.start], end=starts[e.end - 1] + len(self.text[e.end - 1]))
            for e in self
        ]
        return " ".join(self.text), moved

    def to_html(self, path: str | Path | None = None) -> str:
        """The drawing as HTML to put into a page. With a path, a whole page is written there."""
        from diffusionner.drawing.html import fragment, write_page

        if path is not None:
            write_page(Path(path), [self])
        return fragment([self])

    def to_svg(self, path: str | Path | None = None) -> str:
        """The drawing as an SVG picture, written to a file if one is given."""
        from diffusionner.drawing.html import write
        from diffusionner.drawing.svg import picture

        drawn = picture(*self.characters(), self.labels)
        if path is not None:
            write(Path(path), drawn)
        return drawn

    def _repr_html_(self) -> str:
        """What notebooks show."""
        return self.to_html()
