"""Where the keys and values of a sequence lie: regions of rows, each row a token's."""

from __future__ import annotations

from dataclasses import dataclass

from glake.allocator.virtual import PAGE


@dataclass(frozen=True)
class Region:
    """Rows that lie one after another, one for each token, from the beginning of a page on.

    Attributes:
        offset: bytes from the beginning of the sequence's place.
        row: bytes of a row.
    """

    offset: int
    row: int

    def pages(self, tokens: int) -> int:
        """Pages that have a byte of the first tokens.

        Args:
            tokens: how many.
        """
        return -(-tokens * self.row // PAGE)

    def whole(self, tokens: int) -> int:
        """Pages that the first tokens fill.

        Args:
            tokens: how many.
        """
        return tokens * self.row // PAGE


@dataclass(frozen=True)
class Part:
    """Where one layer's keys lie, or its values.

    Attributes:
        region: its number.
        offset: elements from the beginning of a row.
        width: elements of a key or value of one head.
    """

    region: int
    offset: int
    width: int


class Layout:
    """How the place of each sequence is divided.

    Attributes:
        regions: one for all, or one for each layer's keys and one for its values.
        place: bytes of a sequence's place, whole pages.
    """

    def __init__(
        self, layers: int, heads: int, widths: tuple[int, int], item: int, tokens: int, by: str
    ) -> None:
        """`widths`: elements of a key and of a value. `item`: bytes of an element. `by`: "tokens"
        or "layers", which lie side by side."""
        self._widths, self._heads, self._by_token = widths, heads, by == "tokens"
        vectors = [heads * width * item for width in widths]
        rows = [layers * sum(vectors)] if self._by_token else layers * vectors
        regions, self.place = [], 0
        for row in rows:
            regions.append(Region(self.place, row))
            self.place += -(-tokens * row // PAGE) * PAGE
        self.regions = tuple(regions)

    def part(self, layer: int, which: int) -> Part:
        """Where keys (`which` 0) or values (1) of a layer lie.

        Args:
            layer: its number.
            which: 0 or 1.
        """
        if not self._by_token:
            return Part(2 * layer + which, 0, self._widths[which])
        before = layer * sum(self._widths) + which * self._widths[0]
        return Part(0, self._heads * before, self._widths[which])
