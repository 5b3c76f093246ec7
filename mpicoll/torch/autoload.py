"""The function that `import torch` calls, by the entry point in the group `torch.backends`."""


def register() -> None:
    """Register the backend.

    A program that imports mpicoll.torch first comes here in the middle of that import: then the
    function may not exist yet, and the import itself registers the backend at its end.
    """
    from . import registration

    if hasattr(registration, "register"):
        registration.register()
