"""What tests of the meter need: a clock that they set, and a communicator that only counts."""


class Clock:
    """Replaces perf_counter. Whole numbers: sums are exact."""

    def __init__(self):
        self.now = 1000

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Ranks:
    """What the meter needs of a communicator: a counter, and an allgather with what other ranks would give."""

    def __init__(self, rank=0, others=()):
        self.sent, self.rank, self.others = (0, 0), rank, others

    def send(self, nbytes):
        self.sent = self.sent[0] + 1, self.sent[1] + nbytes

    def allgather(self, value):
        return [*self.others[: self.rank], value, *self.others[self.rank:]]

    def Get_rank(self):
        return self.rank


def fields(meter, *names):
    return [tuple(step[name] for name in names) for step in meter.steps]
