"""The console of a broker on a virtual clock, used without a network or by a real browser.

``visitor.py`` calls the application in the process: for tests of what a page has. ``filled.py``
fills the broker, so that each page has something to show.
"""
