"""What requests hold in memory, by kind, and how much that may be. Event loop only."""

from serve.errors import busy


class Budget:
    """So many bytes of something."""

    def __init__(self, what, most):
        self.what, self.most, self.held = what, most, 0


class Share:
    """What one request holds of a budget, until it lets go."""

    def __init__(self, budget):
        self.budget, self.n = budget, 0

    def grow(self, n):
        """Raises busy when there is no room; what was held still is."""
        if self.budget.held + n > self.budget.most:
            raise busy(f"too many {self.budget.what} at once", 1)
        self.budget.held += n
        self.n += n

    def release(self):
        self.budget.held -= self.n
        self.n = 0
