"""What measures: each module is one command, named after what it measures; `suite` runs those of
the network.
"""
