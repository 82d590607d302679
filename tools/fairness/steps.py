"""The steps of the server, by its own histogram."""


class Steps:
    """How long the steps of the server were meanwhile, by its own histogram: mean and 99th percentile."""

    NAME = "folio_engine_step_seconds"

    def __init__(self, server):
        self.server = server

    def _read(self):
        return {key: value for key, value in self.server.metrics().items() if key.startswith(self.NAME)}

    def __enter__(self):
        self.before = self._read()
        return self

    def __exit__(self, *_):
        grown = {key: value - self.before[key] for key, value in self._read().items()}
        count = grown[f"{self.NAME}_count"]
        self.mean = grown[f"{self.NAME}_sum"] / max(1, count)
        ends = sorted((float(key.split('"')[1]), value) for key, value in grown.items() if "_bucket" in key)
        self.p99, low, below = 0, 0, 0
        for end, at_most in ends:
            if at_most >= 0.99 * count:
                # As if the steps of a bucket were spread evenly over it.
                part = (0.99 * count - below) / max(1, at_most - below)
                self.p99 = low + part * (min(end, 2 * low) - low)
                return
            low, below = end, at_most
