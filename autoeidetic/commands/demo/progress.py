"""A listener that prints the story on the terminal, above a progress bar."""

from __future__ import annotations

import sys

from tqdm import tqdm

from .compare import Listener


class ProgressPrinter(Listener):
    """Prints the story if ``verbose``, and shows a progress bar if ``show_bar``."""

    def __init__(self, verbose: bool, show_bar: bool) -> None:
        self._verbose = verbose
        self._bar = tqdm(unit="epoch", disable=not show_bar, leave=False, dynamic_ncols=True)

    def tell(self, text: str) -> None:
        if self._verbose:
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
