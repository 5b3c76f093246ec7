"""What tests of the meter need in place of time, other ranks and a device: no MPI, no GPU.

Stricter than the originals: time stands still until the test moves it, so that every sum is exact;
a device works through one stream alone, and whoever waits for it moves the clock and is counted.
"""

from types import SimpleNamespace


class Clock:
    """Replaces `perf_counter`, in whole seconds: sums are exact."""

    def __init__(self):
        self.now = 1000

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Ranks:
    """A communicator that counts what is sent, and gathers what the `others` contribute."""

    def __init__(self, rank=0, others=()):
        self.sent = (0, 0)  # messages, bytes
        self.rank = rank
        self.others = others

    def send(self, nbytes):
        messages, total = self.sent
        self.sent = messages + 1, total + nbytes

    def allgather(self, value):
        return [*self.others[: self.rank], value, *self.others[self.rank :]]

    def Get_rank(self):
        return self.rank


class Device:
    """CuPy, as far as the meter needs it, and its one stream: work takes time, in order."""

    def __init__(self, clock):
        self.clock = clock
        self.free = 0  # when the stream has no more work
        self.waits = 0  # how often the host waited
        device = self

        class Event:
            def record(self, stream):
                assert stream is device
                self.at = max(device.clock.now, device.free)

            @property
            def done(self):
                return device.clock.now >= self.at

            def synchronize(self):
                device.waits += 1
                device.clock.now = max(device.clock.now, self.at)

        self.cuda = SimpleNamespace(
            Event=Event,
            get_elapsed_time=lambda begin, end: (end.at - begin.at) * 1000,
            get_current_stream=lambda: device,
        )

    def compute(self, seconds):
        self.free = max(self.clock.now, self.free) + seconds


def fields(meter, *names):
    return [tuple(step[name] for name in names) for step in meter.steps]
