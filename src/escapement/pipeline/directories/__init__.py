"""Local directories, and directories that Spark's driver shares with all tasks.

Begin with ``local_directory.py``, the root of an archive on a local or mounted file system. Tasks
write files for the driver into the directory of ``shared_directory.py``.
"""
