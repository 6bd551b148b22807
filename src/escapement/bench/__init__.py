"""`escapement bench`: measurements of a broker on this machine, through the real client.

``command`` declares the commands: begin there. The measurements are in ``measurements``, and those
with many consumers of single messages in ``single``. The other modules are their common parts.
"""
