"""Window: the batches of one update."""

from __future__ import annotations

from anyaccel_distributed.own_loop.loader import Share


class Window:
    """The batches of one update, which `Loop(accumulate=...)` collects.

    Attributes:
        n_batches: Number of batches that have begun.
        is_closing: Whether the last batch of the update has begun.
    """

    def __init__(self) -> None:
        self.n_batches, self.is_closing = 0, False
        self._share: Share | None = None

    def is_current(self, share: Share | None, *, within: bool) -> bool:
        """Return whether a batch is the one that began last.

        Args:
            share: `Share` of the batch; None if it comes from no prepared loader.
            within: Whether the call is made within `accumulate`.
        """
        return self.n_batches > 0 and (share is self._share if share is not None else within)

    def will_close(self, share: Share | None, steps: int) -> bool:
        """Return whether a batch that has not begun is the last of an update of `steps` batches."""
        number = 1 if self.is_closing else self.n_batches + 1
        return number >= steps or (share is not None and share.is_last)

    def begin(self, share: Share | None, steps: int) -> None:
        """Begin a batch."""
        closes = self.will_close(share, steps)
        self.n_batches = 1 if self.is_closing else self.n_batches + 1
        self.is_closing, self._share = closes, share
