class Ledger:
    count: int
    places: int
    sequence: int
    is_hashed: bool
    is_closed: bool
    messages: int
    nbytes: int
