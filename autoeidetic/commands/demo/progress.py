"""ProgressPrinter: the story on the terminal as it goes, above a bar."""

from __future__ import annotations

import sys

from tqdm import tqdm

from .compare import Listener


class ProgressPrinter(Listener):
    """Prints parts of the story if ``aloud``, and shows a bar where somebody is ``watching``."""

    def __init__(self, aloud: bool, watching: bool) -> None:
        self._aloud = aloud
        self._bar = tqdm(unit="epoch", disable=not watching, leave=False, dynamic_ncols=True)

    def tell(self, text: str) -> None:
        if self._aloud:
            with tqdm.external_write_mode(file=sys.stdout):
                print(text, flush=True)

    def expect(self, epochs: int) -> None:
        self._bar.total = epochs
        self._bar.refresh()

    def epoch(self, what: str) -> None:
        self._bar.set_description(what, refresh=False)
        self._bar.update()

    def close(self) -> None:
        self._bar.close()
