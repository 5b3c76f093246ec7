"""A hook of mkdocs: the name of the site says which version it describes."""

from mpicoll.support.version import __version__


def on_config(config):
    config.site_name = f"mpicoll {__version__}"
    return config
