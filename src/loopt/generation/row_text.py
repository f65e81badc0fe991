"""The text of one row as it is generated, and where it stops."""

from __future__ import annotations

from collections.abc import Sequence

from loopt.source import Codec


class RowText:
    """Decodes the tokens of a row as they come, and looks for stop strings, which may span tokens. What might still
    become one is held back.

    ``push`` returns the text that is certain; ``finish`` what was held back when nothing more comes."""

    def __init__(self, codec: Codec, stop: Sequence[str]) -> None:
        self._decode, self._stop = codec.stream(), stop
        self._codec, self._pending = codec, list[int]()  # tokens that are parts of a character
        self._held = ""
        self.text = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """Adds a token, and returns the text that is now certain."""
        piece = self._decode(token)
        self._pending = [] if piece else [*self._pending, token]
        self._held += piece
        found = [at for at in (self._held.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self.stopped = True
            return self._say(min(found), "")
        return self._say(len(self._held) - self._may_stop(), None)

    def finish(self) -> str:
        """Returns what was held back, with a mark for a character that was left incomplete."""
        if self.stopped:
            return ""
        self._held += self._codec.decode(self._pending) if self._pending else ""
        return self._say(len(self._held), "")

    def _say(self, length: int, rest: str | None) -> str:
        said = self._held[:length]
        self._held = self._held[length:] if rest is None else rest
        self.text += said
        return said

    def _may_stop(self) -> int:
        """Returns the length of the longest end of the text that a stop string begins with."""
        lengths = [
            n
            for stop in self._stop
            for n in range(1, min(len(stop), len(self._held) + 1))
            if self._held.endswith(stop[:n])
        ]
        return max(lengths, default=0)
