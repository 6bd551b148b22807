"""The console of a broker on a virtual clock, used without a network or by a real browser.

``visitor.py`` calls the application in the process: for tests of what a page has. ``tab.py`` serves
it to a tab of a browser, which ``chromium.py`` runs. ``accessibility.py`` finds faults of a page.
``filled.py`` fills the broker, so that each page of ``addresses.py`` has something to show, also in
the pictures that ``screenshots.py`` takes.
"""
