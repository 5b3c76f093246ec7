class Ledger:
    count: int
    places: int
    sequence: int
    is_hashed: bool
    is_closed: bool
    is_passing: bool
    every: int
    compared_at: int
    messages: int
    nbytes: int
    thread: int
    lists_all: bool

def write_at_signal(signal: int, descriptor: int, word: bytes) -> None: ...
