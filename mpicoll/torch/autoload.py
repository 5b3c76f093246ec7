"""What `import torch` calls where mpicoll is installed, by the entry point in the group `torch.backends`."""


def register() -> None:
    """Register the backend; who imports mpicoll.torch first comes here in the middle of that, which ends with it."""
    from . import registration

    if hasattr(registration, "register"):
        registration.register()
